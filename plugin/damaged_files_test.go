package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/checkpoint"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/nriplugin"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/oom"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/protect"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/testing/cri"
)

// The disk is slow here in that opening what is written for the state file takes as long as the test wants: these are FIFOs, and
// nobody reads from them. Everything else is as always.
func TestADiskThatHangsHoldsNoContainer(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig+"failurePolicy: Fail\n")
	plugin := h.start()
	h.connected()                                                               // creations have a registration of their own
	first, second := guaranteed("first", 64<<20), guaranteed("second", 31*gi/2) // the limit that kill shows
	h.deploy(first)
	h.watchesKills(first)
	fifos := h.blockFolder()
	file := h.path("state/" + checkpoint.FileName)
	before, err := os.ReadFile(file)
	must(t, err)
	must(t, h.runPod(second))
	// As long as it may only be slow, the container waits for its decision; the kubelet tries again and again.
	var tries []error
	eventually(t, "the container is created all the same", func() bool {
		err := h.create(second)
		tries = append(tries, err)
		return err == nil
	})
	for _, err := range tries[:len(tries)-1] {
		// On a loaded machine the runtime can be the first to give up.
		if !strings.Contains(err.Error(), "not written in time") && !strings.Contains(err.Error(), "deadline exceeded") {
			t.Errorf("a try ended with %v", err)
		}
	}
	if got := h.mems(second); got != "1" {
		t.Errorf("cpuset.mems is %q, want 1", got)
	}
	after, err := os.ReadFile(file)
	must(t, err)
	if diff := cmp.Diff(string(before), string(after)); diff != "" {
		t.Errorf("the state file has changed on a disk that hangs:\n%s", diff)
	}
	eventually(t, "readiness names the checkpoint", func() bool { return strings.Contains(plugin.get("/readyz"), "[-] checkpoint") })
	for kill := 2; kill < 5; kill++ { // each has its verdict
		h.kill(first, kill)
		eventually(t, "the kill is judged", func() bool { return strings.Count(plugin.log.String(), "OOM kill: ") == kill })
	}

	// The disk comes back, though not with that write.
	for _, fifo := range fifos {
		unblock(t, fifo)
	}
	eventually(t, "both allocations are in the state file", func() bool { return len(h.entries()) == 2 })
	eventually(t, "the plugin is ready", func() bool { return !strings.Contains(plugin.get("/readyz"), "[-]") })
}

// kill has the kernel count the n-th kill of a pod's container at its limit.
func (h *host) kill(pod *testPod, n int) {
	h.t.Helper()
	h.counts(pod.cgroup()+"/"+pod.id(), fmt.Sprint(n), fmt.Sprint(n))
	h.counts(pod.cgroup(), "0", fmt.Sprint(n))
}

// watchesKills has a container lose a process, and waits for the verdict.
func (h *host) watchesKills(pod *testPod) {
	h.t.Helper()
	eventually(h.t, "there is a verdict", func() bool {
		h.kill(pod, 1) // again, until the daemon watches
		return len(h.verdicts(pod.name)) > 0
	})
}

// blockFolder has every write to a file of the state folder hang from now on.
func (h *host) blockFolder() (fifos []string) {
	h.t.Helper()
	journal := h.path("state/" + protect.JournalFile)
	replaced := []string{checkpoint.FileName, protect.JournalFile, "raised.json", "requests.json", oom.FileName}
	for _, name := range replaced {
		fifo := h.path("state/" + name + ".tmp")
		eventually(h.t, "no write is under way", func() bool { return unix.Mkfifo(fifo, 0o600) == nil })
		fifos = append(fifos, fifo)
	}
	must(h.t, os.Remove(journal)) // lines are added to it
	must(h.t, unix.Mkfifo(journal, 0o600))
	files, err := os.ReadDir(h.path("state"))
	must(h.t, err)
	for _, file := range files {
		if file.Type().IsRegular() && !slices.Contains(replaced, file.Name()) {
			h.t.Errorf("%s can be written while the disk hangs", file.Name())
		}
	}
	return append(fifos, journal)
}

// unblock lets a write go on that hangs at a FIFO. What it has written is lost, and takes no file's place.
func unblock(t *testing.T, fifo string) {
	t.Helper()
	must(t, os.Rename(fifo, fifo+".lost"))
	reader, err := os.OpenFile(fifo+".lost", os.O_RDONLY|unix.O_NONBLOCK, 0)
	must(t, err)
	t.Cleanup(func() { reader.Close() })
}

// A plugin that is told to end while its disk hangs ends all the same, whichever of its files it is writing.
func TestADiskThatHangsDoesNotHoldTheEnd(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	first := guaranteed("first", 64<<20)
	h.deploy(first)
	h.watchesKills(first)
	h.blockFolder()
	h.kill(first, 2)
	second := guaranteed("second", 12*gi)
	must(t, h.runPod(second))
	if err := h.create(second); err != nil && !strings.Contains(err.Error(), "not written in time") && !strings.Contains(err.Error(), "deadline exceeded") {
		t.Error(err)
	}
	if code := plugin.stop(); code != exitOK {
		t.Errorf("SIGTERM ended the plugin with %d", code)
	}
	said(plugin, "the last state could not be written")
	said(plugin, "the last verdicts on OOM kills could not be written")
}

// What an earlier run could not read is kept, and the plugin goes on without it.
func TestDamagedFilesAreSetAside(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	h.deploy(guaranteed("first", 4*gi))
	plugin.kill()
	files := []string{checkpoint.FileName, protect.JournalFile, "raised.json"}
	for _, file := range files {
		must(t, os.WriteFile(h.path("state/"+file), []byte("{"), 0o600))
		// A crash has left more: the next write uses it up.
		must(t, os.WriteFile(h.path("state/"+file+".tmp"), make([]byte, 1<<20), 0o600))
	}
	plugin = h.start()
	eventually(t, "the allocations are back", func() bool { return len(h.entries()) == 1 })
	for i, kept := range h.setAside() {
		if name, _, _ := strings.Cut(filepath.Base(kept), ".corrupt-"); !slices.Contains(files, name) {
			t.Errorf("%d: %s is set aside", i, kept)
		}
		said(plugin, "(kept as "+kept+")")
	}
	if kept := h.setAside(); len(kept) != len(files) {
		t.Errorf("set aside: %v", kept)
	}
	if code := plugin.stop(); code != exitOK {
		t.Errorf("SIGTERM ended the plugin with %d", code)
	}
	if info, err := os.Stat(h.path("state/" + checkpoint.FileName)); err != nil || info.Size() > 1<<16 {
		t.Errorf("the state file: %v, %v", info, err)
	}
	left, err := filepath.Glob(h.path("state/*.tmp"))
	must(t, err)
	if want := []string{h.path("state/raised.json.tmp")}; !slices.Equal(left, want) { // nothing was raised
		t.Errorf("left are %v, want %v", left, want)
	}
}

func TestAReadOnlyStateFolderHoldsNoContainer(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	if os.Geteuid() == 0 {
		// Permissions mean nothing to root, so the plugin runs as nobody; all but its state folder is nobody's.
		h.as = &syscall.Credential{Uid: 65534, Gid: 65534}
		must(t, h.give(h.dir))
	}
	must(t, os.Chmod(h.path("state"), 0o555))
	t.Cleanup(func() { os.Chmod(h.path("state"), 0o755) })
	plugin := h.start()
	first := guaranteed("first", 4*gi)
	h.deploy(first)
	if got := h.mems(first); got != "0" {
		t.Errorf("cpuset.mems is %q, want 0", got)
	}
	if ready := plugin.get("/readyz"); !strings.Contains(ready, "[-] checkpoint") {
		t.Errorf("readiness does not name the checkpoint:\n%s", ready)
	}
	// The allocations are in memory: the second pod does not land on the first.
	second := guaranteed("second", 12*gi)
	h.deploy(second)
	if got := h.mems(second); got != "1" {
		t.Errorf("cpuset.mems is %q, want 1", got)
	}
	// A restart finds them at the runtime.
	plugin.kill()
	h.start()
	third := guaranteed("third", 8*gi)
	h.deploy(third)
	if got := h.mems(third); got != "0" {
		t.Errorf("cpuset.mems is %q, want 0", got)
	}
}

func TestADamagedStateFileIsKeptAndRebuilt(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	first := guaranteed("first", 4*gi)
	h.deploy(first)
	before := h.entries()
	plugin.kill()
	must(t, os.WriteFile(h.path("state/"+checkpoint.FileName), []byte(`{"policyName":"Static","machineState":{`), 0o600))
	h.start()
	eventually(t, "the allocations are back", func() bool { return slices.Equal(h.entries(), before) })
	kept, err := filepath.Glob(h.path("state/" + checkpoint.FileName + ".corrupt-*"))
	must(t, err)
	if len(kept) != 1 {
		t.Errorf("kept aside: %v, want the damaged file", kept)
	}
}

func (h *host) high(p *testPod) string { return h.knob(p.cgroup()+"/"+p.id(), "memory.high") }

func TestConfigurationIsReloaded(t *testing.T) {
	t.Parallel()
	const half = "topologyManagerPolicy: restricted\nkubeReserved: {memory: 924Mi}\nmemoryThrottlingFactor: 0.5\nguaranteedHeadroom: 0\n"
	for name, test := range map[string]struct {
		options cri.Options
		change  func(*host, *process)
	}{
		"the file is rewritten": {cri.Options{}, func(h *host, _ *process) { h.write("config.yaml", half) }},
		"the file is replaced": {cri.Options{}, func(h *host, _ *process) {
			h.write("config.yaml.new", half)
			must(h.t, os.Rename(h.path("config.yaml.new"), h.path("config.yaml")))
		}},
		"on a runtime without unasked updates": {cri.Options{Name: "cri-o", Version: "1.34.2", NRI: nriplugin.Version{Minor: 10}},
			func(h *host, _ *process) { h.write("config.yaml", half) }},
		"a mounted ConfigMap changes": {cri.Options{}, func(h *host, _ *process) {
			must(h.t, os.Mkdir(h.path("new"), 0o755))
			h.write("new/config.yaml", half)
			must(h.t, os.Symlink("new", h.path("..data_tmp")))
			must(h.t, os.Rename(h.path("..data_tmp"), h.path("..data")))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, test.options, testConfig)
			if strings.Contains(name, "ConfigMap") {
				must(t, os.Mkdir(h.path("old"), 0o755))
				must(t, os.Rename(h.path("config.yaml"), h.path("old/config.yaml")))
				must(t, os.Symlink("old", h.path("..data")))
				must(t, os.Symlink("..data/config.yaml", h.path("config.yaml")))
			}
			plugin := h.start()
			web := burstable("web", 2*gi, 968)
			h.deploy(web)
			before := h.high(web)
			test.change(h, plugin)
			eventually(t, "memory.high of the running container is lower", func() bool { return h.high(web) < before })
			if ready := plugin.get("/readyz"); strings.Contains(ready, "[-]") {
				t.Errorf("not ready:\n%s", ready)
			}
		})
	}
}

func TestAnInvalidConfigurationLeavesTheOldOne(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	web := burstable("web", 2*gi, 968)
	h.deploy(web)
	before := h.high(web)
	h.write("config.yaml", "memoryThrotlingFactor: 0.5\n")
	eventually(t, "readiness names the configuration", func() bool { return strings.Contains(plugin.get("/readyz"), "[-] config") })
	if ready := plugin.get("/readyz"); !strings.Contains(ready, "memoryThrottlingFactor") {
		t.Errorf("readiness does not name the right key:\n%s", ready)
	}
	other := burstable("other", 2*gi, 968)
	h.deploy(other)
	if got := h.high(other); got != before {
		t.Errorf("memory.high is %s, want %s as before", got, before)
	}
	h.write("config.yaml", testConfig)
	eventually(t, "the plugin is ready", func() bool { return !strings.Contains(plugin.get("/readyz"), "[-]") })
}

func TestSIGHUPReadsTheConfigurationAgain(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	taken := strings.Count(plugin.log.String(), "configuration in force")
	must(t, plugin.cmd.Process.Signal(syscall.SIGHUP))
	eventually(t, "the configuration is in force again", func() bool {
		return strings.Count(plugin.log.String(), "configuration in force") > taken
	})
}

func TestRollbackTakesEverythingBack(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	plugin := h.start()
	first, web := guaranteed("first", 4*gi), burstable("web", 2*gi, 968)
	untouched := map[string]string{"memory.min": "0", "memory.low": "0", "memory.high": "max"}
	h.deploy(first, web)
	if code := plugin.stop(); code != exitOK {
		t.Fatalf("SIGTERM ended the plugin with %d", code)
	}
	if got := h.knob(first.cgroup(), "memory.min"); got == "0" {
		t.Fatal("the pod is not protected, there is nothing to roll back")
	}
	flags := []string{"rollback", "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups"}
	before := h.picture()
	code, out, errOut := run(t, "", append(flags, "--dry-run")...)
	if code != exitOK || !strings.Contains(out, "would    kubepods/memory.min") {
		t.Errorf("--dry-run: exit %d\n%s%s", code, out, errOut)
	}
	if diff := cmp.Diff(before, h.picture()); diff != "" {
		t.Errorf("--dry-run has changed:\n%s", diff)
	}
	code, out, errOut = run(t, "", flags...)
	if code != exitOK || !strings.Contains(out, "restored kubepods/memory.min") {
		t.Errorf("exit %d\n%s%s", code, out, errOut)
	}
	for _, cgroup := range []string{"kubepods", "kubepods/burstable", first.cgroup(), web.cgroup(),
		first.cgroup() + "/" + first.id(), web.cgroup() + "/" + web.id()} {
		for file, want := range untouched {
			if got := h.knob(cgroup, file); got != want {
				t.Errorf("%s/%s is %s, want %s", cgroup, file, got, want)
			}
		}
	}
	code, out, errOut = run(t, "", flags...)
	if code != exitOK || out != "nothing to restore\n" {
		t.Errorf("a second time: exit %d\n%s%s", code, out, errOut)
	}
}

// However soon after a container's creation the plugin is killed, rollback knows what was written for it.
func TestRollbackAfterAKill(t *testing.T) {
	t.Parallel()
	h := newHost(t, cri.Options{}, testConfig)
	for i := range 3 {
		plugin := h.start()
		first, web := guaranteed(fmt.Sprint("first", i), 2*gi), burstable(fmt.Sprint("web", i), 2*gi, 968)
		h.deploy(first, web)
		plugin.kill()
		code, out, errOut := run(t, "", "rollback", "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups")
		if code != exitOK || !strings.Contains(out, "restored kubepods/memory.min") {
			t.Errorf("exit %d\n%s%s", code, out, errOut)
		}
		for _, cgroup := range []string{"kubepods", "kubepods/burstable", first.cgroup(), web.cgroup(),
			first.cgroup() + "/" + first.id(), web.cgroup() + "/" + web.id()} {
			for file, want := range map[string]string{"memory.min": "0", "memory.low": "0", "memory.high": "max"} {
				if got := h.knob(cgroup, file); got != want {
					t.Errorf("%s/%s is %s, want %s", cgroup, file, got, want)
				}
			}
		}
	}
}

// Beside a kubelet with MemoryQoS a rollback leaves what the kubelet wants, where that is known.
func TestRollbackGivesBackWhatTheKubeletWants(t *testing.T) {
	t.Parallel()
	byKubelet := func(p *testPod, files, unified map[string]string) *testPod {
		p.files, p.unified = files, unified
		return p
	}
	database := byKubelet(guaranteed("database", 4*gi), map[string]string{"memory.min": "4294967296"}, map[string]string{"memory.min": "4294967296"})
	web := byKubelet(burstable("web", 2*gi, 968), map[string]string{"memory.low": "1099999232"},
		map[string]string{"memory.low": "1099999232", "memory.high": "2042736640"})
	before := byKubelet(guaranteed("before", gi), map[string]string{"memory.min": "1073741824"}, map[string]string{"memory.min": "1073741824"})
	plain := guaranteed("plain", gi) // of this one the kubelet wants nothing

	h := newHost(t, cri.Options{}, strings.Replace(testConfig, "guaranteedHeadroom: 0", "guaranteedHeadroom: 0.02", 1))
	h.deploy(before) // the plugin comes later
	plugin := h.start()
	h.deploy(database, web, plain)
	web.unified = map[string]string{"memory.low": "1099999232", "memory.high": "3009413120"}
	must(t, h.runtime.UpdateContainer(t.Context(), web.id(), &api.LinuxResources{Memory: &api.LinuxMemory{Limit: api.Int64(int64(3 * gi))}, Unified: web.unified}))
	if code := plugin.stop(); code != exitOK { // a restart in between forgets nothing
		t.Fatalf("SIGTERM ended the plugin with %d", code)
	}
	if code := h.start().stop(); code != exitOK {
		t.Fatalf("SIGTERM ended the plugin with %d", code)
	}
	for _, p := range []*testPod{database, before} {
		for _, cgroup := range []string{p.cgroup(), p.cgroup() + "/" + p.id()} {
			if got := h.knob(cgroup, "memory.min"); got == p.files["memory.min"] {
				t.Fatalf("%s has the kubelet's memory.min, there is nothing to roll back", cgroup)
			}
		}
	}

	flags := []string{"rollback", "--state-dir", h.path("state"), "--cgroups", h.path("cgroups"), "--plain-cgroups"}
	for _, dryRun := range []bool{true, false} {
		args := flags
		verb := "restored "
		if dryRun {
			args, verb = append(flags, "--dry-run"), "would    "
		}
		code, out, errOut := run(t, "", args...)
		if code != exitOK {
			t.Fatalf("%v: exit %d\n%s%s", args, code, out, errOut)
		}
		wantAll(t, out,
			verb+database.cgroup()+`/memory.min: "4209065984" to "4294967296", the kubelet's own value`,
			verb+web.cgroup()+"/"+web.id()+`/memory.high: "`, `to "3009413120", the kubelet's own value`,
			verb+plain.cgroup()+`/memory.min: "1052266496" to "0"`+"\n",
			"note     a kubelet with the feature gate MemoryQoS writes memory.min of kubepods and memory.low of the Burstable level again within a minute",
			"note     no value of the kubelet's is known for 3 of the files of pods and containers",
			"note     the runtime may still have the values of before in its records of containers (4)")
	}
	for _, p := range []*testPod{database, web, before, plain} {
		for cgroup, files := range map[string]map[string]string{p.cgroup(): p.files, p.cgroup() + "/" + p.id(): p.unified} {
			for file, want := range map[string]string{"memory.min": "0", "memory.low": "0", "memory.high": "max"} {
				if kubelet, wants := files[file]; wants {
					want = kubelet
				}
				if got := h.knob(cgroup, file); got != want {
					t.Errorf("%s/%s is %s, want %s", cgroup, file, got, want)
				}
			}
		}
	}
	for _, cgroup := range []string{"kubepods", "kubepods/burstable"} {
		for _, file := range []string{"memory.min", "memory.low"} {
			if got := h.knob(cgroup, file); got != "0" {
				t.Errorf("%s/%s is %s, want 0", cgroup, file, got)
			}
		}
	}
}

// A runtime starts a plugin that it finds installed, and hands it its configuration.
func TestAPreinstalledPlugin(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]cri.Options{
		"of today":                     {},
		"never synchronized (NRI 0.6)": {Name: "containerd", Version: "v1.7.20", NRI: nriplugin.Version{Minor: 6, Patch: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newPreinstalled(t, options, testConfig)
			must(t, h.runtime.Start())
			first, large := guaranteed("first", 4*gi), guaranteed("large", 64*gi)
			h.deploy(first)
			if got := h.mems(first); got != "0" {
				t.Errorf("cpuset.mems is %q, want 0", got)
			}
			must(t, h.runPod(large))
			if err := h.create(large); err == nil || !strings.Contains(err.Error(), "restricted") {
				t.Errorf("the create ended with %v: the policy in the delivered configuration is not in force", err)
			}
		})
	}
}

// newPreinstalled has the runtime, which is to be started, find a plugin that it starts itself.
func newPreinstalled(t *testing.T, options cri.Options, config string) *host {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "plugins"), 0o755))
	must(t, os.Mkdir(filepath.Join(dir, "conf.d"), 0o755))
	options.PluginDir, options.ConfigDir = filepath.Join(dir, "plugins"), filepath.Join(dir, "conf.d")
	h := newHost(t, options, "")
	h.runtime.Stop()
	h.hugePages(512, 512)
	// What the flags say would be this machine's own folders; a script keeps the test away from them.
	script := "#!/bin/sh\nexec " + binary + " run --state-dir " + h.path("state") + " --cgroups " + h.path("cgroups") +
		" --plain-cgroups --machine " + h.path("machine") + " --metrics-address ''\n"
	must(t, os.WriteFile(filepath.Join(options.PluginDir, "92-memory-manager"), []byte(script), 0o755))
	must(t, os.WriteFile(filepath.Join(options.ConfigDir, "92-memory-manager.conf"), []byte(config), 0o644))
	return h
}
