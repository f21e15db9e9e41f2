# nri-memory-manager: `make help` lists what can be done.

GO          ?= go
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOTESTSUM   := gotest.tools/gotestsum@v1.13.0
ACTIONLINT  := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
BINARY      := bin/nri-memory-manager
KUBECTL     := bin/kubectl-memory_manager
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# The handful of Kubernetes' own cases that make e2e runs, unless CONFORMANCE is empty.
CONFORMANCE ?= 1
SHORTLIST   := -runs plugin -suites memory_qos,memory_manager \
               -focus 'Burstable pod using formula|through QoS cgroup hierarchy|only app containers|multiple guaranteed pods started should succeed'
FUZZTIME    ?= 60s
BENCH       ?= .
IN          ?= ./...
TIME        ?= 1s
COUNT       ?= 1
# One set of flags for programs, tests and vet of all modules, so that every package is compiled once. grpcnotrace leaves gRPC's tracing
# pages out, and with them text/template: what looks methods up by name has the linker keep the exported methods of every type.
# nethttpomithttp2 leaves out HTTP/2 as net/http has it: client-go speaks it to the API server through golang.org/x/net, and what is served
# is HTTP/1.1. Without debugging information, of which a release has none, all is compiled a sixth faster.
FLAGS       := -trimpath -gcflags=all=-dwarf=false -tags grpcnotrace,nethttpomithttp2
STATIC      := CGO_ENABLED=0
# GOGC is the compiler's: the tests, and the daemons that they start, run without it.
BUILD       := GOGC=400 $(STATIC) $(GO) build $(FLAGS)
# The same commit gives the same bytes. A changed working tree is no commit, and has no provenance.
RELEASE     := $(STATIC) $(GO) -C deploy run $(FLAGS) ./release -version $(VERSION) -created "$$(git log -1 --format=%ct)" \
               -commit "$$(test -n "$$(git status --porcelain)" || git rev-parse HEAD)" -out ../bin
# `make lint` vets; the tests of ./plugin, which wait for processes, begin first. With -short random walks take fewer steps.
TEST        := test -json -vet=off -parallel 8 -timeout 20m -exec 'env -u GOGC' $(if $(RACE),,-short) $(FLAGS)
PACKAGES     = ./plugin ./...
ifdef RACE
# The packages that start goroutines, without test support. RACE has the tests of ./plugin build a daemon with the race detector.
CONCURRENT  := $(addprefix ./,$(shell grep -rlE --include='*.go' '^\s*go [a-z]|\<go func|\.Go.func' pkg | xargs -n1 dirname | sort -u | grep -v ^pkg/testing))
PACKAGES     = ./plugin $(filter-out $(CONCURRENT),$(patsubst $(CURDIR)/%,./%,$(shell $(GO) list -f '{{.Dir}}' ./...)))
endif
# All modules' tests as one stream of JSON, from which gotestsum makes one list of what failed and what was skipped. What needs a program
# of Kubernetes runs in `make e2e`, which builds them. First all packages are compiled, which the tests and what they build find then;
# -buildmode=archive links no program.
TESTS        = status=0; export GOGC=400; \
               $(BUILD) -buildmode=archive ./... || status=1; \
               $(STATIC) $(GO) $(TEST) $(PACKAGES) || status=1; \
               $(if $(RACE),CGO_ENABLED=1 $(GO) $(TEST) -race $(CONCURRENT) || status=1;) \
               $(STATIC) $(GO) -C deploy $(TEST) ./chart ./monitoring ./release || status=1; \
               $(STATIC) $(GO) -C plugin/e2e $(TEST) -count=1 -run NRI ./pods || status=1; \
               $(STATIC) $(GO) -C plugin/e2e $(TEST) ./conformance/... || status=1; \
               exit $$status
# staticcheck has the go command list what it reads.
LINT        := $(STATIC) GOFLAGS='$(strip $(shell $(GO) env GOFLAGS) $(subst -tags ,-tags=,$(FLAGS)))' $(GO)
RUNTESTS    := GOGC=400 $(STATIC) $(GO) run $(FLAGS) $(GOTESTSUM)
# The built plugin beside NRI's own runtime side, on a machine that need not be there.
DEMO        := $(STATIC) $(GO) run $(FLAGS) ./plugin/demo --plugin $(BINARY) --machine testdata/machines/demo.yaml --pod-info kubelet
PICTURES    := $(DEMO) --config testdata/page/config.yaml

.DEFAULT_GOAL := help
.PHONY: help build daemon image release run pictures test simulate-node bench fuzz lint outdated e2e conformance fleet clean

help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: daemon ## Build the static binary and the kubectl plugin into bin/
	$(BUILD) -ldflags '-s -w -X main.version=$(VERSION)' -o $(KUBECTL) ./plugin/kubectl

daemon:
	$(BUILD) -ldflags '-s -w -X main.version=$(VERSION)' -o $(BINARY) ./plugin

image: ## Build the container image for amd64 and arm64 into bin/image.tar, without a container engine
	@mkdir -p bin
	$(RELEASE) image

release: ## Build image, tarballs with the systemd unit, SBOMs, packed chart, kubectl plugin, provenance and SHA256SUMS into bin/
	@mkdir -p bin
	$(RELEASE)

run: daemon ## Build, then send the manifests in testdata/pods through NRI into the plugin on a simulated two-socket machine, and serve its page (ONCE=1: end)
	$(DEMO) $(if $(ONCE),--once) --config testdata/config/demo.yaml --expect-rejected too-large/app testdata/pods/*.yaml

pictures: VERSION := $(shell sed -n 's/^appVersion: //p' deploy/helm/nri-memory-manager/Chart.yaml)# that the chart names, too
pictures: daemon ## Take the pictures in docs/page of the page of a real daemon with 3, 60 and 200 pods, in Chromium
	$(PICTURES) --picture docs/page/3-pods-390.png:390x844 --picture docs/page/3-pods-2560.png:2560x700 testdata/pods/[156]-*.yaml >/dev/null
	$(PICTURES) --picture docs/page/light.png:1280x960 --picture docs/page/dark.png:1280x960:dark testdata/page/60-pods.yaml >/dev/null
	$(PICTURES) --picture docs/page/200-pods-820.png:820x1180 --picture docs/page/200-pods-1920.png:1920x820 testdata/page/200-pods.yaml >/dev/null

test: export RUN_TESTS = $(TESTS)
test: ## Run every test of the packages and of the built binary, and list what was skipped and the slowest (RACE=1: with the race detector; MISSING=fail: a missing program fails its tests)
	$(if $(RACE),@command -v $${CC:-cc} >/dev/null || { echo 'RACE=1 needs a C compiler: apt-get install gcc libc6-dev'; exit 1; })
	@mkdir -p bin
	@status=0; $(RUNTESTS) --format standard-quiet --jsonfile bin/tests.json --raw-command -- sh -c "$$RUN_TESTS" || status=1; \
	  sed -n 's/.*"Output":"[^"]*\(simulated: [^"\\]*\).*/\1/p' bin/tests.json; \
	  echo && echo 'The slowest tests:' && $(RUNTESTS) tool slowest --jsonfile bin/tests.json --num 10; exit $$status

simulate-node: ## Run the whole daemon on a modelled node in virtual time: SCENARIO=file.json, or from SEED (1) on SEEDS (100) of them, or HOURS
	@for number in '$(SEED)' '$(SEEDS)' '$(HOURS)'; do case "$$number" in *[!0-9]*|0|???????????*) echo 'SEED, SEEDS and HOURS are whole numbers from 1 to 9999999999' >&2; exit 2;; esac; done
	@$(if $(SCENARIO),test -f '$(SCENARIO)' || { echo '$(SCENARIO): no such file' >&2; exit 2; })
	$(STATIC) $(GO) test -vet=off $(FLAGS) -count=1 -timeout 0 -v -run 'TestNode$$' ./plugin $(if $(SCENARIO),-shrink 0 -scenario $(abspath $(SCENARIO)),-seed $(or $(SEED),1) $(if $(HOURS),-for $(HOURS)h,-seeds $(or $(SEEDS),100)))

bench: ## Run the benchmarks, with their files in memory (BENCH=pattern IN=package TIME=500x COUNT=3)
	$(if $(wildcard /dev/shm),TMPDIR=/dev/shm) $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(TIME) -count $(COUNT) $(IN)

e2e: ## Run the tests on real kernels with real runtimes, in virtual machines (RUN=pattern VARIANT=name KEEP=1 CONFORMANCE=)
	$(STATIC) $(GO) -C plugin/e2e run $(FLAGS) .
	$(if $(RUN)$(VARIANT),,$(if $(CONFORMANCE),$(STATIC) $(GO) -C plugin/e2e run $(FLAGS) ./conformance $(SHORTLIST)))
	$(if $(RUN)$(VARIANT),,MISSING=fail $(STATIC) $(GO) -C deploy test -count=1 -timeout 20m $(FLAGS) ./apiserver)
	$(if $(RUN)$(VARIANT),,$(STATIC) $(GO) -C plugin/e2e test -count=1 -parallel 8 -timeout 20m $(FLAGS) -run Kubernetes ./pods)

conformance: ## Run Kubernetes' own tests of the node with the plugin in place of the kubelet's managers (KUBERNETES=v1.36.3 SUITES=a,b FOCUS=pattern SKIP=pattern RUNS=reference=FOLDER,plugin)
	$(STATIC) $(GO) -C plugin/e2e run $(FLAGS) ./conformance -out ../../docs/conformance.md $(if $(KUBERNETES),-kubernetes $(KUBERNETES)) $(if $(SUITES),-suites $(SUITES)) \
	  $(if $(FOCUS),-focus '$(FOCUS)') $(if $(SKIP),-skip '$(SKIP)') $(if $(RUNS),-runs $(RUNS))

fleet: ## Measure how a scheduler fills NUMA nodes, by NodeResourceTopologies and by claims (NODES=100 ONLY=pattern, or SHORT=1 for the test)
	$(STATIC) $(GO) -C plugin/e2e run $(FLAGS) ./fleet $(if $(SHORT),-short) $(if $(NODES),-nodes $(NODES)) $(if $(ONLY),-only '$(ONLY)')

fuzz: ## Run every fuzz target for FUZZTIME (60s)
	@grep -rl --include='*_test.go' '^func Fuzz' pkg plugin | grep -v plugin/e2e | xargs -n1 dirname | sort -u | while read -r dir; do \
	  for target in $$(grep -ho '^func Fuzz[A-Za-z0-9]*' $$dir/*_test.go | cut -c6-); do \
	    echo "$$dir $$target" && $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) ./$$dir || exit 1; done; done

lint: ## Check formatting, go vet, staticcheck, words that were replaced, the shell scripts and the workflows
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "gofmt would change:"; echo "$$unformatted"; exit 1; }
	$(LINT) vet ./... && $(LINT) run $(STATICCHECK) ./...
	$(LINT) -C deploy vet ./... && $(LINT) -C deploy run $(STATICCHECK) ./...
	$(LINT) -C plugin/e2e vet ./... && $(LINT) -C plugin/e2e run $(STATICCHECK) ./...
	$(STATIC) $(GO) -C plugin/e2e/tools/kubernetes vet -trimpath -gcflags=all=-dwarf=false ./rules
	$(LINT) run $(ACTIONLINT) .github/workflows/*.yaml
	@status=0; while read -r word instead; do case "$$word" in '#'*) continue;; esac; \
	  ! git grep -nwF -e "$$word" -- '*.go' '*.md' deploy ':!CHANGELOG.md' || { echo "  $$word: say $$instead"; status=1; }; done < testdata/words.txt; exit $$status
	@if command -v shellcheck >/dev/null; then shellcheck $$(git ls-files '*.sh') .ci/run; else echo "shellcheck is not installed: scripts not checked"; fi

outdated: ## Name what the modules require directly and has a newer release; some need a newer Go, tools/kubelet136 stays old
	@for module in . deploy plugin/e2e $$(ls -d plugin/e2e/tools/* | grep -v kubelet136); do \
	  $(GO) -C $$module list -m -f '{{if not (or .Indirect .Main .Replace)}}{{.Path}}{{end}}' all | xargs $(GO) -C $$module list -e -m -u -f \
	    '{{with .Update}}{{$$.Path}} {{$$.Version}}, newest {{.Version}}{{end}}{{with .Error}}{{$$.Path}}: {{.Err}}{{end}}' | sed "s|^|$$module/go.mod: |"; done

clean: ## Remove what was built
	rm -rf bin
