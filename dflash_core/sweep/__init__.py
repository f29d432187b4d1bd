"""The sweep lab: acceptance and speed over temperature × block size × rule, with intervals. `python -m dflash_core.sweep`.

plan.py      Prompt, Cell, RunKey, SweepPlan: what is to be measured
prompts.py   prompts from files and presets
runs.py      sweep_runs(): a generator of blocks and finished runs
figures.py   Estimate, CellResult, SweepResults …: the values of the results
results.py   finished runs → figures with intervals
speed.py     … speeds, cost model, recommendation
store.py     the directory; lines.py: a run as a line of its runs.jsonl
outputs.py   cells.csv, positions.csv, summary.json
about.py     models, hardware, versions
command.py   the command line
"""
