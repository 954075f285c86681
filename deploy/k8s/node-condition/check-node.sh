#!/bin/bash
# Plugin of node-problem-detector: asks the collector what its store says of this node (docs/nodes.md).
#
#   exit 0  the node is below the limits of `rankscope nodes --exclude-file`
#   exit 1  it reaches them: a recommendation to exclude it
#   exit 2  unknown: no answer, a refusal, or a collector without a store
#
# Prints one line of at most 80 bytes, as many as node-problem-detector keeps. It needs bash and coreutils, which the image
# of node-problem-detector has; it has no HTTP client. No TLS.
# Environment: RANKSCOPE_HTTP (HOST:PORT of the collector), NODE_NAME; RANKSCOPE_TOKEN_FILE and RANKSCOPE_WAIT_S are optional.
set -u
export LC_ALL=C
readonly OK=0 EXCLUDE=1 UNKNOWN=2
readonly WAIT_S=${RANKSCOPE_WAIT_S:-5} BYTES_MAX=65536

finish() {
    printf '%.80s\n' "${2//[^[:print:]]/ }"
    exit "$1"
}

address=${RANKSCOPE_HTTP:-} node=${NODE_NAME:-} token=""
[[ $address =~ ^([A-Za-z0-9.-]+):([0-9]+)$ ]] || finish $UNKNOWN "RANKSCOPE_HTTP is not HOST:PORT"
host=${BASH_REMATCH[1]} port=${BASH_REMATCH[2]}
[[ $node =~ ^[A-Za-z0-9.-]+$ ]] || finish $UNKNOWN "NODE_NAME is no name of a node"
if [[ -n ${RANKSCOPE_TOKEN_FILE:-} && -e $RANKSCOPE_TOKEN_FILE ]]; then
    token=$(<"$RANKSCOPE_TOKEN_FILE") || finish $UNKNOWN "the token file cannot be read"
    [[ $token =~ ^[[:graph:]]+$ ]] || finish $UNKNOWN "the token file has no token"
fi

# The request is piped in: arguments of a process are visible to others.
# shellcheck disable=SC2016 # the inner bash expands its own arguments
answer=$(
    {
        printf 'GET /api/v1/nodes/%s HTTP/1.0\r\nHost: %s\r\n' "$node" "$address"
        [[ -z $token ]] || printf 'Authorization: Bearer %s\r\n' "$token"
        printf '\r\n'
    } | timeout -k 1 "$WAIT_S" bash -c 'exec 3<>"/dev/tcp/$1/$2" && cat >&3 && head -c "$3" <&3' _ \
        "$host" "$port" $BYTES_MAX 2>/dev/null | tr -d '\000'
)
[[ -n $answer ]] || finish $UNKNOWN "no answer from the collector within $WAIT_S s"
status=${answer%%$'\r'*}
[[ $status =~ ^HTTP/1\.[01]\ 200\  ]] || finish $UNKNOWN "the collector answers: ${status#HTTP/1.? }"
record=${answer#*$'\r\n\r\n'}
[[ $record == *'}' && $record =~ \"runs\":([0-9]+),\"runs_held_up\":([0-9]+), ]] ||
    finish $UNKNOWN "the answer is no record of a node"
held_up="held up ${BASH_REMATCH[2]} of its last ${BASH_REMATCH[1]} runs"
[[ ${BASH_REMATCH[1]} != 0 ]] || held_up="no run in the store used this node"
# Quotes in the texts of the record are escaped, so these are found as fields only.
case $record in
    *'"exclude":true'*) finish $EXCLUDE "recommendation to exclude it: $held_up" ;;
    *'"exclude":false'*) finish $OK "$held_up" ;;
    *) finish $UNKNOWN "the answer is no record of a node" ;;
esac
