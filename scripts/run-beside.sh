#!/usr/bin/env bash
# Starts a test program beside others, for scripts/test.sh: cargo would wait for each, and many of
# them mostly wait. Waits for one of the free places (the bytes of $BESIDE/free) first. The output
# goes to $BESIDE/NAME.log, the exit status to NAME.status; NAME.pid has the process meanwhile.
set -uo pipefail

case "$1" in
*/deps/*) ;;
# A documentation test, which rustdoc deletes as soon as this ends.
*) exec "$@" ;;
esac
name=$BESIDE/$(basename "$1")
read -r -n 1 <"$BESIDE/free"
{
    "$@" >"$name.log" 2>&1 &
    echo $! >"$name.pid"
    wait $!
    echo $? >"$name.status"
    rm "$name.pid"
    printf . >"$BESIDE/free"
} </dev/null >/dev/null 2>&1 &
