# Shared by the scripts beside it. Sourced, not run.
#
# Brings the shell to the root of the repository, finds cargo, and installs what is missing.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A shell without a login does not know where rustup put cargo.
cargo_bin="${CARGO_HOME:-${HOME:-/root}/.cargo}/bin"
if ! command -v cargo >/dev/null 2>&1 && [ -x "$cargo_bin/cargo" ]; then
    PATH="$cargo_bin:$PATH"
    export PATH
fi

# Where cargo puts what it builds.
target_dir="${CARGO_TARGET_DIR:-target}"
case $target_dir in
    /*) ;;
    *) target_dir="$PWD/$target_dir" ;;
esac

step() { printf '\n== %s\n' "$*"; }
# time_steps: from here on, steps are measured (timed), and a table of them is printed at the end of the script, even
# where a step failed.
time_steps() {
    step_names=() step_seconds=() step_began=
    trap print_times EXIT
}
# timed WHAT COMMAND...
timed() {
    step "$1"
    step_names+=("$1") step_began=$SECONDS
    "${@:2}"
    step_seconds+=("$((SECONDS - step_began))")
}
print_times() {
    local i
    [ "${#step_names[@]}" -gt 0 ] || return 0
    printf '\n%8s  %s\n' seconds step
    for i in "${!step_names[@]}"; do
        if [ "$i" -lt "${#step_seconds[@]}" ]; then
            printf '%8s  %s\n' "${step_seconds[i]}" "${step_names[i]}"
        else
            printf '%8s  %s: NOT FINISHED\n' "$((SECONDS - step_began))" "${step_names[i]}"
        fi
    done
    printf '%8s  %s\n' "$SECONDS" 'in all'
}
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# get PACKAGE...: from the distribution, as root or by sudo.
get() {
    command -v apt-get >/dev/null 2>&1 || die "please install: $*"
    local as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null 2>&1 || die "please install, as root: apt-get install $*"
        as_root=(sudo)
    fi
    step "installing $*"
    # The package lists of a new machine may be empty or old.
    DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get update -qq </dev/null || true
    DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" </dev/null >/dev/null \
        || die "could not install: $*"
}

# A Rust toolchain that is new enough, and the linker it needs.
need_rust() {
    local wanted have
    wanted=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    command -v cargo >/dev/null 2>&1 \
        || die "Rust $wanted or newer is needed: install it with rustup (https://rust-lang.org), then run this again"
    have=$(rustc --version | cut -d ' ' -f 2)
    if [ "$(printf '%s\n%s\n' "$wanted" "$have" | sort -V | head -n 1)" != "$wanted" ]; then
        die "Rust $wanted or newer is needed, this is $have: run rustup update, then run this again"
    fi
    command -v cc >/dev/null 2>&1 || get gcc libc6-dev
}

# What the tests use besides Rust: strace makes system calls fail, faketime moves the wall clock, lines of the guides call
# curl, and the bench drives a Redis and an etcd. The package `zookeeper` would bring a desktop's Java: the library has the server too.
need_test_tools() {
    local missing=()
    command -v redis-server >/dev/null 2>&1 || missing+=(redis-server)
    command -v etcd >/dev/null 2>&1 || missing+=(etcd-server)
    command -v etcdctl >/dev/null 2>&1 || missing+=(etcd-client)
    command -v java >/dev/null 2>&1 || missing+=(default-jre-headless)
    [ -e /usr/share/java/zookeeper.jar ] || missing+=(libzookeeper-java)
    command -v strace >/dev/null 2>&1 || missing+=(strace)
    command -v curl >/dev/null 2>&1 || missing+=(curl)
    command -v faketime >/dev/null 2>&1 || missing+=(faketime)
    [ -x /usr/lib/postgresql/15/bin/initdb ] || missing+=(postgresql-15)
    command -v pgbouncer >/dev/null 2>&1 || [ -x /usr/sbin/pgbouncer ] || missing+=(pgbouncer)
    [ "${#missing[@]}" -eq 0 ] || get "${missing[@]}"
}

# The Node of the distribution may be too old for the build, but it can fetch a newer one from the npm registry.
need_node() {
    local new_enough='const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)'
    node -e "$new_enough" 2>/dev/null && command -v npm >/dev/null 2>&1 && return
    local tools="$target_dir/tools/node" arch
    case $(uname -m) in
        x86_64) arch=x64 ;;
        aarch64) arch=arm64 ;;
        *) die "Node 20.19 or newer is needed: see https://nodejs.org" ;;
    esac
    command -v npm >/dev/null 2>&1 || get nodejs npm
    step "a newer Node"
    npm install --silent --no-save --prefix "$tools" "node-linux-$arch@22" npm@10
    PATH="$tools/node_modules/node-linux-$arch/bin:$tools/node_modules/.bin:$PATH"
    export PATH
    node -e "$new_enough" || die "Node 20.19 or newer is needed, this is $(node --version)"
}
