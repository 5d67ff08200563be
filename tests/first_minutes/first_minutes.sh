#!/usr/bin/env bash
# The first quarter of an hour on a real card that nothing can be fetched from: what to run, in which order, within limits.
#
#     bash tests/first_minutes/first_minutes.sh pack     # where packages can be had: .gpu/site.tar.xz, 25 MB; then copy the checkout there
#     bash tests/first_minutes/first_minutes.sh first    # there, 7 minutes: machine, suspects, answers on the card, decoding, kernels
#     bash tests/first_minutes/first_minutes.sh second   # there, 6 minutes: 4 and 8 bits, streaming, out of memory, a night on 8 GB
#
# Results: $OUT/results.jsonl (a line an answer) and $OUT/logs.tgz. A section that fails or hangs costs its own limit and nothing else.
# SCALE=3 gives every section three times its seconds; TINY=1 rehearses with small shapes, on a pretended card, too.
set -u
cd "$(dirname "$0")/../.."
ROOT=$PWD
PY=${PY:-python3}
# What the program needs and an installation of torch may lack; CUDA libraries of bitsandbytes are for the machine's release.
PACKAGES="transformers bitsandbytes msgspec pydantic pydantic-core annotated-types typing-inspection SQLAlchemy greenlet zstandard xxhash gguf pytest-timeout pytest-xdist execnet"
PYTHON_THERE=${PYTHON_THERE:-3.12} CUDA_THERE=${CUDA_THERE:-130}

pack() {
  mkdir -p .gpu && rm -rf .gpu/site
  grep -qx '/.gpu/' .git/info/exclude 2>/dev/null || echo '/.gpu/' >> "$(git rev-parse --git-path info/exclude)"
  local platforms wanted
  platforms=$(for n in 17 24 26 27 28 31 34; do printf -- '--platform manylinux_2_%s_x86_64 ' "$n"; done)
  wanted=$($PY -c "import sys; from importlib.metadata import version; print(*(f'{n}=={version(n)}' for n in sys.argv[1:]))" $PACKAGES) || exit 1
  # shellcheck disable=SC2086
  $PY -m pip install -q --target .gpu/site --no-deps --no-compile --only-binary=:all: --python-version "$PYTHON_THERE" --implementation cp \
    $platforms --platform manylinux2014_x86_64 --platform manylinux1_x86_64 $wanted || exit 1
  find .gpu/site/bitsandbytes -name 'libbitsandbytes_*.so' ! -name "*cuda$CUDA_THERE*" ! -name '*_cpu.so' -delete
  find .gpu/site -name tests -type d -prune -exec rm -rf {} +
  find .gpu/site -name '*.pyi' -delete
  tar -C .gpu/site -cJf .gpu/site.tar.xz . && rm -rf .gpu/site
  du -sh .gpu/*
}

prepare() {
  export OUT=${OUT:-/tmp/first-minutes} WORK=${WORK:-/dev/shm/first-minutes} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
  export OVERNIGHT_CACHE=$WORK/cache
  LOGS=$OUT/logs SITE=$WORK/site
  mkdir -p "$LOGS" "$WORK"
  if [ -f .gpu/site.tar.xz ] && [ ! -d "$SITE" ]; then mkdir -p "$SITE" && tar -C "$SITE" -xJf .gpu/site.tar.xz; fi
  export PYTHONPATH=$SITE:$ROOT${PYTHONPATH:+:$PYTHONPATH}
}

limited() { timeout -k 5 $(($1 * ${SCALE:-1})) "${@:2}"; }   # limited SECONDS COMMAND...

note() { echo "{\"section\": \"$1\", \"ended\": $2}" >> "$OUT/results.jsonl"; }

section() {   # section SECONDS NAME
  limited "$1" $PY -m tests.first_minutes "$2" > "$LOGS/$2.log" 2>&1 || note "$2" $?
  tail -n 3 "$LOGS/$2.log" | cut -c1-400
  bring
}

check() {   # check SECONDS NAME ARGUMENTS...: tests of this project, with models on the card
  limited "$1" $PY -m pytest -q --maxfail=40 -o addopts= -W default "${@:3}" > "$LOGS/$2.log" 2>&1
  note "$2" $?
  tail -n 12 "$LOGS/$2.log" | cut -c1-200
  bring
}

bring() { tar -czf "$OUT/logs.tgz" -C "$OUT" logs 2>/dev/null; }

first() {
  nvidia-smi > "$LOGS/nvidia-smi.txt" 2>&1
  section 45 machine
  section 60 suspects
  # models of many families on the card, references on the processor; then every engine, quantization and placement
  check 80 equivalence -p tests.pretend_card.on_card -n "${JOBS:-8}" -m 'not full' tests/equivalence/test_families.py tests/equivalence/test_packed.py tests/equivalence/test_stages.py tests/equivalence/test_reuse.py ${FEW:+-k "$FEW"}
  CARD_IS_REAL=1 check 50 engines -n "${JOBS:-8}" -m 'not full' tests/pretend_card/test_engines.py
  check 30 gpu -n 0 -m gpu tests/engine/streaming
  section 120 decode_bf16
  section 30 attention_kernels
}

second() {
  section 110 decode_nf4
  section 80 streamed
  section 30 out_of_memory_while_loading
  night 60
  # races between streams, found by torch's own sanitizer; a pretended card looks for them itself and tells it of no wait
  [ -n "${PRETEND_CARD:-}" ] || export TORCH_CUDA_SANITIZER=1
  CARD_IS_REAL=1 check 40 sanitizer -n 0 -m 'not full' -k 'offloaded or streamed' tests/pretend_card/test_engines.py
  unset TORCH_CUDA_SANITIZER
  grep -c CSAN "$LOGS/sanitizer.log"
}

night() {   # night SECONDS: a whole night by the program's own worker, on a card that ends at 8 GB
  local tokens=64 after=20 context=4096
  [ "${TINY:-}" = 1 ] && tokens=8 after=1 context=2048
  cat > "$OUT/night.yaml" <<Y
model: {id: $WORK/qwen3-4b, quantization: nf4, dtype: bfloat16, context_tokens: $context, max_memory: {0: 7GiB, cpu: 24GiB}}
source: {path: data/reports.jsonl}
tasks:
  - {name: topic, kind: label, labels: {world: null, sports: null, business: null, science: null}}
  - {name: summary, kind: summarize, max_output_tokens: $tokens, long_documents: map_reduce}
kv_cache: {store: {documents: always, quota: 10GB}}
run: {directory: $WORK/night}
Y
  # a pretended card is as large as it is said to be, and is made in the same way
  [ -n "${PRETEND_CARD:-}" ] || export CARD_BYTES=8GiB PYTHONPATH=$ROOT/tests/first_minutes/limit:$PYTHONPATH
  limited "$1" $PY -m pipeline.cli.main doctor "$OUT/night.yaml" > "$LOGS/doctor.log" 2>&1; note doctor $?
  limited "$1" $PY -m pipeline.cli.main plan "$OUT/night.yaml" --measure --json > "$LOGS/plan.json" 2> "$LOGS/plan.log"; note plan $?
  limited "$1" $PY -m pipeline.cli.main run "$OUT/night.yaml" --limit "${NIGHT:-40}" --json > "$LOGS/night.json" 2> "$LOGS/night.log" &
  local night=$!
  sleep $after; nvidia-smi --query-compute-apps=pid,used_memory --format=csv > "$LOGS/processes.csv" 2>&1
  wait $night; note night $?
  limited 20 $PY -m pipeline.cli.main report "$WORK/night" --json > "$LOGS/night-report.json" 2>/dev/null
  cp "$WORK/night/worker.log" "$LOGS/" 2>/dev/null
  unset CARD_BYTES
  tail -c 600 "$LOGS/night.json"; cat "$LOGS/processes.csv"
}

case ${1:-help} in
  pack) pack ;;
  first | second | night) prepare; "$@"; bring; echo; grep -c . "$OUT/results.jsonl" ;;
  *) sed -n 2,10p "$0" ;;
esac
