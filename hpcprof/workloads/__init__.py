"""Benchmark models, ready to train. They know nothing of the analyser; they use annotate only.

Runs inside the training environment: Python >= 3.8, TensorFlow (and Horovod) and nothing else.
"""
