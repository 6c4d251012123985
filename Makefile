SHELL := bash
BUF := .tools/venv/bin/buf

.PHONY: help run check test cargo-test lint proto mutants-core mutants fuzz soak figures tools stubs clean-tools

help: ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-14s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Serve examples/tidegate.toml
	cargo run --release -p tidegate-server -- serve --config examples/tidegate.toml

check: ## Type-check everything, in seconds
	cargo check --workspace --all-targets

# Its last lines tell how long each step took, also when one failed.
test: ## All that CI runs: tools, lint, proto, cargo-test, mutants-core
	@report='Time of each step:'; trap 'echo "$$report"' EXIT; \
	for step in tools lint proto cargo-test mutants-core; do \
		start=$$SECONDS; \
		$(MAKE) --no-print-directory $$step && end=ok || end=FAILED; \
		report+=$$(printf '\n%6d s  %-12s  %s' $$((SECONDS - start)) $$step $$end); \
		[[ $$end == ok ]] || exit 1; \
	done

cargo-test: export TIDEGATE_TESTS := ci
cargo-test: ## Run the tests in CI's sizes (plain cargo test: the quick ones)
	cargo test --workspace

# $(call component,NAME,COMMAND): runs COMMAND if the Rust component NAME is there or can be added.
define component
	@if cargo $(firstword $(2)) --version >/dev/null 2>&1 || rustup component add $(1); \
	then set -x; cargo $(2); \
	else echo 'SKIPPED: cargo $(2) (no $(1) here, and rustup could not add it)'; fi
endef

lint: ## Check format, clippy and docs; any warning fails
	$(call component,rustfmt,fmt --all --check)
	$(call component,clippy,clippy --workspace --all-targets -- -D warnings)
	RUSTDOCFLAGS='-D warnings' cargo doc --no-deps

proto: tools ## Check the protos: lint, format, nothing broken since branch main
	$(BUF) lint
	$(BUF) format --diff --exit-code
	@if git ls-tree -r --name-only main proto/ 2>/dev/null | grep -q '\.proto$$'; \
	then set -x; $(BUF) breaking --against '.git#branch=main'; \
	else echo 'SKIPPED: buf breaking (no branch main with protos here)'; fi

mutants-core: ## Plant the bugs of tests/mutants/ that are in the core: a test must see each
	tests/mutants/run.sh core

mutants: ## Plant all of them
	tests/mutants/run.sh

# Those of the inputs found so far that matter stay in fuzz/corpus, which git ignores; fuzz/seeds is where they began.
FUZZ_SECONDS := 30
FUZZ_TARGETS := request lease_id config operations
CARGO_FUZZ_VERSION := 0.13.2

fuzz: ## Try inputs that nobody thought of, FUZZ_SECONDS=30 for each target
	@if cargo +nightly --version >/dev/null 2>&1; \
	then $(MAKE) --no-print-directory fuzz-targets; \
	else echo 'SKIPPED: fuzz (libFuzzer needs a nightly Rust: rustup toolchain install nightly)'; fi

# No sanitizer: there is no unsafe code here, and without one it tries twice as much.
.PHONY: fuzz-targets
fuzz-targets: .tools/bin/cargo-fuzz-$(CARGO_FUZZ_VERSION)
	set -e; export PATH="$$PWD/.tools/bin:$$PATH"; for target in $(FUZZ_TARGETS); do \
		mkdir -p fuzz/corpus/$$target; \
		cargo +nightly fuzz run --sanitizer none $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1; \
	done

.tools/bin/cargo-fuzz-$(CARGO_FUZZ_VERSION):
	cargo install --quiet --root .tools cargo-fuzz --version $(CARGO_FUZZ_VERSION) --locked
	touch $@

SOAK_FUZZ_SECONDS := 3600

soak: ## Run the tests in their largest sizes, for hours
	TIDEGATE_TESTS=soak cargo test --release --workspace
	$(MAKE) fuzz FUZZ_SECONDS=$(SOAK_FUZZ_SECONDS)

figures: ## Measure the figures of tests/LEDGER.md (needs h2load: nghttp2-client)
	tests/figures.sh

tools: ## Bring buf, gRPC for Python and its stubs into .tools/ (quick if there)
	@scripts/tools.sh

stubs: ## The same, with the Python stubs made anew
	@scripts/tools.sh stubs

clean-tools: ## Remove .tools/
	rm -rf .tools
