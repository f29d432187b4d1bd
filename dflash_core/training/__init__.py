"""How a DFlash draft is made for a target: `synthesise` its data, `train`, `evaluate`. Each is run as a module."""
