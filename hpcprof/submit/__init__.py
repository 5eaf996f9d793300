"""Makes job scripts and submits them: a job spec and a site in, a batch script or a job id out.

Knows Slurm's commands and options. Knows no trace format and nothing of what runs inside the job.
"""
