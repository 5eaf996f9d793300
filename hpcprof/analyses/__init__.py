"""How to compute a number: one question per module, spans in, a frozen result out.

An analysis never judges, prints or plots. Each one is two functions: ``per_rank`` turns one rank's
spans into a small frame, ``across_ranks`` turns the frames into the result.
"""
