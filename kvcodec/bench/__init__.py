"""How fast the kernels, the log and the commands are here, beside this machine's bandwidth and beside other libraries.

Rows (`row.py`) say what is measured, `timing.py` how: all contenders of a row take turns, so that drift hits all
alike. Times of a shared machine mean little; their ratios, taken within one round each, mean more.
"""
