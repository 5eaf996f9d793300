"""What the node agent writes into ``nodes/<host>/``: names of records and fields, by file.

Every file is JSON lines, appended to, so that a killed job loses one line at most; a last line that
is not whole is skipped. A record says what it is with ``kind``. Times are ns; those without another
word are CLOCK_MONOTONIC of the node that wrote the file.

clock.jsonl
    agent     schema, node, reference, transport, pid, monotonic_ns, realtime_ns     first line
              again when that changes: the reference was found late (null until then), or MPI broke
              off and only samples follow (transport "none", as on the only node of a job)
    wall      before_ns, realtime_ns, after_ns      the wall clock in a bracket, once per burst
    exchange  burst, sent_ns, arrived_ns, answered_ns, received_ns
              one ping and its answer: sent and received on this node's clock, arrived and answered
              on that of ``reference``. Of each burst only the narrowest round trips are kept
    note      text                                              something went wrong, in words
    end       reason, monotonic_ns                              the agent ended by itself
links.jsonl
    link      peer, bytes, start_ns, duration_ns, round_trip_ns, transport
              one message from this node to ``peer``: duration until the peer's answer that it has
              all of it; round_trip is that of an empty message, to be taken off
samples.jsonl
    sample    monotonic_ns, counters {name: number}, ranks {"3": {name: number}}
              names end in their unit; see COUNTERS. Cumulative ones count from boot or start
address.json
    where the agent listens when it talks over UDP and TCP, with the token its packets must carry
facts.json
    one object: node, cpus, memory_bytes, kernel, psutil, interfaces {name: {speed_mbit, mtu}},
    data_dir, data_filesystem {type, mount, source}. What is not known is null or left out
"""

from __future__ import annotations

SCHEMA = 1

AGENT, WALL, EXCHANGE, NOTE, END = "agent", "wall", "exchange", "note", "end"
LINK, SAMPLE = "link", "sample"
MPI, UDP = "mpi", "udp"  # transports; links of a job without MPI in the agent are TCP

# counters of a node; <i> is a network interface, <m> a mount point
COUNTERS = {
    "cpu_busy_frac": "share of all cores that was busy since the last sample",
    "memory_used_bytes": "memory in use, without caches",
    "memory_total_bytes": "memory of the node",
    "net_<i>_sent_bytes": "cumulative",
    "net_<i>_received_bytes": "cumulative",
    "net_<i>_errors": "cumulative packets with errors, both ways",
    "net_<i>_drops": "cumulative packets dropped, both ways",
    "tcp_retransmitted_segments": "cumulative",
    "swap_in_bytes": "cumulative",
    "swap_out_bytes": "cumulative",
    "pressure_cpu_some_us": "cumulative time in which some task waited for a core",
    "pressure_memory_some_us": "the same for memory",
    "pressure_io_some_us": "the same for storage",
    "nfs_<m>_read_bytes": "cumulative, by the server's answers",
    "nfs_<m>_read_ops": "cumulative",
    "nfs_<m>_read_rtt_ms": "cumulative, from request to answer",
    "nfs_<m>_read_execute_ms": "cumulative, the same and the wait before it was sent",
    "canary_stat_ns": "time of one stat of a file of the data set",
    "canary_open_ns": "time to open it",
    "canary_read_ns": "time to read canary_read_bytes of it",
    "canary_read_bytes": "how much was read",
    "canary_pending_ns": "age of a test read that has not come back",
    "canary_errors": "cumulative number of test reads that failed; absent before the first",
}
# counters of a rank's process tree
RANK_COUNTERS = {
    "rchar_bytes": "cumulative, read through system calls, caches included",
    "wchar_bytes": "cumulative",
    "syscr": "cumulative number of read calls",
    "syscw": "cumulative number of write calls",
    "read_bytes": "cumulative, from storage",
    "write_bytes": "cumulative, to storage",
    "rss_bytes": "resident memory",
    "cpu_ns": "cumulative processor time",
    "threads": "number of threads",
}
