#!/bin/bash
# Unpacks Nsight Systems into the cache (about 300 MB, no root, nothing installed into the system).
# The packages come from the machine's own apt sources, whose non-free part is read privately.
. "$(dirname "$0")/lib.sh"

PACKAGES=(nsight-systems nsight-systems-target)

# works DIR: whether the nsys in there writes a report by itself and exports it
works() {
    local try
    try=$(mktemp -d)
    TMPDIR=$try "$1/bin/nsys" profile --trace=nvtx --sample=none --cpuctxsw=none \
        --session-new="hpcprof-setup-$$" --output="$try/try" sleep 0.1 >"$try/log" 2>&1 9>&- &&
        [ -s "$try/try.nsys-rep" ] &&
        TMPDIR=$try "$1/bin/nsys" export --type=sqlite --output="$try/try.sqlite" \
            "$try/try.nsys-rep" >>"$try/log" 2>&1 &&
        [ -s "$try/try.sqlite" ]
    local code=$?
    [ "$code" -eq 0 ] || tail -n 5 "$try/log" >&2
    rm -rf "$try"
    return "$code"
}

# private_sources OUT: the machine's archive entries with the components nsys is in
private_sources() {
    local components='main contrib non-free' codename
    # shellcheck source=/dev/null
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    grep -qi '^ID=ubuntu' /etc/os-release && components='main universe restricted multiverse'
    local file
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -f "$file" ] || continue
        # stanzas of other vendors have suites of their own name
        awk -v RS= -v codename="$codename" -v components="$components" '
            $0 ~ "(^|\n)Suites:[^\n]*[ \t]" codename {
                sub(/(^|\n)Components:[^\n]*/, "\nComponents: " components)
                sub(/^\n/, ""); print $0 "\n"
            }' "$file" >>"$1/machine.sources"
    done
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -f "$file" ] || continue
        sed -nE "s/^(deb( \[[^]]*\])? +[^ ]+ +${codename}[^ ]*) .*/\1 $components/p" "$file" \
            >>"$1/machine.list"
    done
}

# unpack_packages DIR: download with apt into DIR/debs, unpack into DIR/root
unpack_packages() {
    mkdir -p "$1/parts" "$1/lists/partial" "$1/archives/partial" "$1/debs" "$1/root"
    private_sources "$1/parts"
    local apt=(apt-get -q
        -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$1/parts"
        -o "Dir::State::Lists=$1/lists" -o "Dir::Cache=$1" -o APT::Sandbox::User=root)
    "${apt[@]}" update >"$1/log" 2>&1 || return
    (cd "$1/debs" && "${apt[@]}" download "${PACKAGES[@]}" >>"$1/log" 2>&1) || return
    # libraries of the system its importer needs, for machines without them
    (cd "$1/debs" && "${apt[@]}" download libssh-4 libpfm4 >>"$1/log" 2>&1) || true
    local deb
    for deb in "$1"/debs/*.deb; do dpkg-deb -x "$deb" "$1/root"; done
}

# lay_out FROM TO: command line and importer side by side, as nsys looks for them; no GUI
lay_out() {
    local target host library
    target=$(find "$1" -type d -name 'target-linux-*' | head -n 1)
    host=$(find "$1" -type d -name 'host-linux-*' | head -n 1)
    [ -n "$target" ] && [ -n "$host" ] || return
    mkdir -p "$2/bin"
    mv "$target" "$host" "$2/"
    host=$2/$(basename "$host")
    rm -f "$host"/libQt6WebEngine* "$host"/nsys-ui* "$host"/CrashReporter
    rm -rf "$host"/Plugins "$host"/libexec "$host"/translations
    ln -s "../$(basename "$target")/nsys" "$2/bin/nsys"
    for library in libssh.so.4 libpfm.so.4; do
        find "$1" -name "$library*" -exec cp -a {} "$host/" \;
    done
    # Debian's link points into the system, where the library need not be
    [ ! -L "$host/libssh.so" ] || ln -sf libssh.so.4 "$host/libssh.so"
}

# shellcheck source=/dev/null
folder=$CACHE/nsys/$(. /etc/os-release && echo "$ID-${VERSION_ID:-rolling}")-$(uname -m)
if [ -e "$folder/.complete" ]; then
    record HPCPROF_TEST_NSYS "$folder/bin/nsys"
    exit 0
fi
record HPCPROF_TEST_NSYS ''
for tool in apt-get dpkg-deb; do
    command -v "$tool" >/dev/null || skip "no $tool here to fetch Nsight Systems with"
done

lock nsys
if [ ! -e "$folder/.complete" ]; then
    say "unpacking Nsight Systems into $folder"
    work=$CACHE/nsys/.work
    rm -rf "$work" "$folder"
    mkdir -p "$work" "$folder"
    trap 'rm -rf "$work"' EXIT
    unpack_packages "$work" || skip "Nsight Systems not in the apt sources ($(tail -n 1 "$work/log"))"
    lay_out "$work/root" "$folder" || skip "unknown layout of the Nsight Systems packages"
    works "$folder" || skip "Nsight Systems writes no report on this machine (output above)"
    touch "$folder/.complete"
fi
record HPCPROF_TEST_NSYS "$folder/bin/nsys"
