# Sourced by scripts/test, scripts/check and the others: gives them one Python environment in .venv with what they need.
#
#   . "$(dirname "$0")/env.sh"
#   use_environment test          # or other extras of setup.cfg, such as demo,compile
#
# Afterwards $PYTHON is that environment's Python, its programs come first in PATH, and the current folder is the
# project's. The first call installs; later ones compare a stamp and take a fraction of a second. ZKCONSUMER_VENV
# names another folder than .venv.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

say() { printf '%s\n' "$*" >&2; }

# Print a Python here that supports these extras: the newest of 3.11 to 3.14, or else 3.15. The demo needs confluent-kafka,
# which has no wheel for 3.15 yet.
find_python() {
    local candidate path newest=15
    case $1 in *demo*) newest=14 ;; esac
    for candidate in python3.14 python3.13 python3.12 python3.11 python3.15 python3 python; do
        path=$(command -v "$candidate") || continue
        if "$path" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, '$newest'))' 2>/dev/null; then
            printf '%s\n' "$path"
            return 0
        fi
    done
    say "This needs Python 3.11 to 3.$newest, and none is in PATH."
    return 1
}

make_environment() {
    local folder=$1 python
    python=$(find_python "$2") || return 1
    say "Making a Python environment in $folder with $("$python" --version)"
    if ! "$python" -m venv --clear "$folder"; then
        say "$python cannot make environments; on Debian and Ubuntu: apt-get install python3-venv"
        return 1
    fi
}

use_environment() {
    local extra=$1 folder=${ZKCONSUMER_VENV:-.venv} stamp wanted
    mkdir -p "$folder"
    folder=$(cd "$folder" && pwd)
    PYTHON=$folder/bin/python
    # Two scripts started at once must not install over each other; where there is no flock they are on their own.
    exec 9<setup.cfg
    if command -v flock >/dev/null; then flock 9; fi
    if ! "$PYTHON" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        make_environment "$folder" "$extra" || return 1
    fi
    stamp=$folder/.installed-$extra
    wanted="$PWD $("$PYTHON" --version) $(cat setup.cfg pyproject.toml | cksum)"
    case $extra in
        *demo*) # the tests' environment has all that a demo needs
            if [ "$(cat "$folder/.installed-test" 2>/dev/null)" = "$wanted" ]; then stamp=$folder/.installed-test; fi
            ;;
    esac
    if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
        say "Installing zkconsumer[$extra] (the first time takes a minute or two) ..."
        rm -f "$stamp"
        "$PYTHON" -m pip install --quiet --disable-pip-version-check --use-pep517 --editable ".[$extra]" || return 1
        # Spark lists the modules of its path, and an editable installation hides its own from such a listing.
        printf '%s\n' "$PWD/zkconsumer/spark/discovered" \
            >"$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/zkconsumer-discovered.pth"
        printf '%s\n' "$wanted" >"$stamp"
    fi
    exec 9>&-
    export PYTHON PATH="$folder/bin:$PATH" VIRTUAL_ENV="$folder"
}

# Compile zkconsumer/data_plane beside its sources, if they changed since the last time and there is a C compiler.
# Of two scripts started at once, the second one finds what the first has compiled.
compile_data_plane() {
    exec 9<setup.cfg
    if command -v flock >/dev/null; then flock 9; fi
    "$PYTHON" scripts/packaging/compile.py --if-possible 9>&-
    exec 9>&-
}
