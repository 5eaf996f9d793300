"""The NVTX recorder: C that is compiled where hpcprof is installed, see ``build_hook``."""
