"""The sweep lab: acceptance and speed over temperature × block size × rule, with intervals. `python -m dflash_core.sweep`.

plan.py      Prompt, Cell, RunKey, SweepPlan: what is to be measured
prompts.py   prompts from files and presets
runs.py      sweep_runs(): a generator of blocks and finished runs
results.py   finished runs → figures with intervals
store.py     the directory: runs.jsonl, cells.csv, summary.json
"""
