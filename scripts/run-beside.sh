#!/usr/bin/env bash
# Starts a test program beside others, for scripts/test.sh: cargo would wait for each, and many of
# them mostly wait. Waits for one of the free places (the bytes of $BESIDE/free) first. The output
# goes to $BESIDE/NAME.log, the exit status to NAME.status. NAME.pid holds its process group while
# it runs, so that test.sh can end what it started, too.
set -muo pipefail

case "$1" in
*/deps/*) ;;
# A documentation test, which rustdoc deletes as soon as this ends.
*) exec "$@" ;;
esac
name=$BESIDE/$(basename "$1")
# A program that is never heard of again has failed.
{ echo running >"$name.status" && : >"$name.log"; } || exit 1
read -r -n 1 <"$BESIDE/free"
{
    "$@" >"$name.log" 2>&1 &
    echo "$BASHPID" >"$name.pid"
    wait $!
    echo $? >"$name.status"
    rm "$name.pid"
    printf . >"$BESIDE/free"
} </dev/null >/dev/null 2>&1 &
