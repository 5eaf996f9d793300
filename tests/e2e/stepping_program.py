"""A training that marks its steps with annotate and does what its arguments say.

Run as ``python stepping_program.py STEPS STEP_SECONDS MARKS [ACTION@STEP ...]``. MARKS gets a line
when it starts, for each signal TERM, and at its end. It ends with code 7. An action comes before
its step:

    sleep:3@20      nothing for 3 s, as a hang that other threads may notice
    hold:3@20       the same with the interpreter's lock held, as in a driver
    kill:9@20       ends by a signal
    exit:0@20       ends with this code
    wait:FILE@20    until the file is there
"""

import ctypes
import os
import signal
import sys
import time

from hpcprof import annotate


def act(action, argument):
    if action == "sleep":
        time.sleep(float(argument))
    elif action == "hold":
        ctypes.PyDLL(None).sleep(int(argument))  # PyDLL keeps the lock
    elif action == "kill":
        os.kill(os.getpid(), int(argument))
    elif action == "exit":
        sys.exit(int(argument))
    elif action == "wait":
        while not os.path.exists(argument):
            time.sleep(0.02)


def main():
    steps, seconds, marks = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    actions = {}
    for text in sys.argv[4:]:
        what, _, step = text.rpartition("@")
        actions[int(step)] = what.split(":", 1)
    with open(marks, "a", buffering=1) as log:
        log.write(f"start {os.getpid()}\n")
        if not any(action == "kill" for action, _ in actions.values()):
            signal.signal(signal.SIGTERM, lambda *_: log.write("signal 15\n"))
        for number in range(steps):
            if number in actions:
                act(*actions[number])
            with annotate.step():
                time.sleep(seconds)
        log.write("end\n")
    print("to stdout")
    print("to stderr", file=sys.stderr)
    sys.exit(7)


if __name__ == "__main__":
    main()
