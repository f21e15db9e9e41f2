package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/nri-memory-manager/nri-memory-manager/plugin/e2e/setup"
)

const (
	// ours is the folder of what is handed to the plugin, and of the kubelet's configuration without its managers.
	ours        = "/run/conformance"
	kubeletFile = "kubelet.yaml"
	pluginUnit  = "nri-memory-manager.service"
	stateDir    = "/var/lib/nri-memory-manager"
	pluginAddr  = "127.0.0.1:8891"
	// Where the suites look for the Memory Manager's state file and for the PodResources API.
	kubeletState  = "/var/lib/kubelet/memory_manager_state"
	kubeletSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"
)

// kubeletHealth is the port at which the kubelet answers answerHealth.
const kubeletHealth = 10247

// startLimit bounds the start of a daemon on an emulated machine.
const startLimit = 2 * time.Minute

// kubelet hands a KubeletConfiguration to the plugin, takes the managers out of it, and runs the real kubelet with what is left.
func kubelet(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	given := value(args, "--config")
	text, err := os.ReadFile(given)
	if err != nil {
		return fmt.Errorf("read the kubelet's configuration: %w", err)
	}
	var config map[string]any
	if err := yaml.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("%s: %w", given, err)
	}
	static := config["memoryManagerPolicy"] == "Static"
	assignsCPUs := config["cpuManagerPolicy"] == "static"
	if err := startPlugin(ctx, text, pluginConfig(config, ours), pluginFlags(args)); err != nil {
		return err
	}
	rest, err := yaml.Marshal(withoutManagers(config))
	if err != nil {
		return err
	}
	left := filepath.Join(ours, "kubelet-without-managers.yaml")
	if err := os.WriteFile(left, rest, 0o644); err != nil {
		return err
	}
	for _, left := range []string{kubeletState, kubeletSocket} { // links to the plugin's: see standIn
		if err := os.Remove(left); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	cmd := exec.Command(setup.Kubelet, with(args, "--config", left)...)
	errs, err := os.OpenFile(setup.Logs+"/kubelet.log", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer errs.Close()
	cmd.Stdout, cmd.Stderr = os.Stdout, &failures{to: errs}
	// The kubelet leaves the unit's cgroup, so that systemd does not end it after this process. The signal comes when the thread
	// that has started it ends: this one must not.
	runtime.LockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	if static {
		if err := standIn(ctx, !assignsCPUs); err != nil && ctx.Err() == nil {
			note(err)
		}
	}
	if err := answerHealth(); err != nil {
		return err
	}
	go func() {
		<-ctx.Done()
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}()
	return cmd.Wait()
}

// failures keeps the errors of a kubelet's log, and what is no line of klog's: the reason of an exit.
type failures struct {
	to   io.Writer
	line []byte
}

func (f *failures) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		f.line, rest = append(f.line, part...), after
		if !ended {
			break
		}
		if len(f.line) > 0 && !bytes.ContainsAny(f.line[:1], "IW") {
			if _, err := f.to.Write(append(f.line, '\n')); err != nil {
				return 0, err
			}
		}
		f.line = f.line[:0]
	}
	return len(p), nil
}

// value is the value of a flag, in either of its forms.
func value(args []string, name string) string {
	for i, arg := range args {
		if arg == name && i+1 < len(args) {
			return args[i+1]
		}
		if text, ok := strings.CutPrefix(arg, name+"="); ok {
			return text
		}
	}
	return ""
}

// with returns the arguments with another value of a flag.
func with(args []string, name, value string) []string {
	changed := append([]string(nil), args...)
	for i, arg := range args {
		if arg == name && i+1 < len(args) {
			changed[i+1] = value
		} else if strings.HasPrefix(arg, name+"=") {
			changed[i] = name + "=" + value
		}
	}
	return changed
}

// answerHealth passes on the kubelet's own answers about its health. The suites read the state file as soon as there is one, so that it must be
// the plugin's before.
func answerHealth() error {
	listener, err := net.Listen("tcp", "127.0.0.1:10248") // where the suites ask
	if err != nil {
		return err
	}
	kubelet := &url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", kubeletHealth)}
	go func() { note(http.Serve(listener, httputil.NewSingleHostReverseProxy(kubelet))) }()
	return nil
}

// withoutManagers takes out what the plugin does in the kubelet's place, and moves the port of answerHealth. The topology manager stays: it has CPUs and devices, and
// no hints for memory under the policy None. So does reservedMemory, which that policy does not look at, and which the suites
// read back.
func withoutManagers(config map[string]any) map[string]any {
	config["memoryManagerPolicy"] = "None"
	config["healthzPort"] = kubeletHealth
	for _, key := range []string{"memoryManagerPolicyOptions", "memoryThrottlingFactor", "memoryReservationPolicy"} {
		delete(config, key)
	}
	gates, _ := config["featureGates"].(map[string]any)
	if gates == nil {
		gates = map[string]any{}
	}
	gates["MemoryQoS"] = false // from 1.37 on it is on by default
	config["featureGates"] = gates
	return config
}

// pluginConfig is the plugin's configuration beside the kubelet's: where its own defaults differ from what the kubelet does, it
// does what the kubelet does.
func pluginConfig(config map[string]any, folder string) []byte {
	c := map[string]any{
		"kubeletConfig": filepath.Join(folder, kubeletFile), "guaranteedHeadroom": 0, "onUnsatisfiable": "Reject", "onConflict": "Kubelet",
		"stallGuard": false, "events": true, "logLevel": "debug",
	}
	if config["memoryManagerPolicy"] != "Static" { // which the plugin does not take over: a kubelet beside it should have None
		c["memoryManagerPolicy"] = "None"
	}
	gates, _ := config["featureGates"].(map[string]any)
	if gates["MemoryQoS"] != true { // the kubelet writes none of the files then
		c["memoryThrottlingFactor"], c["memoryReservationPolicy"] = nil, "None"
	} else if config["memoryThrottlingFactor"] == nil { // 1.36 has it in the configuration by default
		c["memoryThrottlingFactor"] = nil
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		panic(err) // plain values
	}
	return text
}

// pluginFlags have the plugin reach the API server as the kubelet does.
func pluginFlags(args []string) []string {
	node := value(args, "--hostname-override")
	if node == "" {
		node, _ = os.Hostname()
	}
	return []string{"--kubeconfig", value(args, "--kubeconfig"), "--node-name", node, "--timings", "request=1500ms"}
}

// startPlugin starts the plugin with these files and flags, or starts it again where they are other ones, and waits until it is ready.
func startPlugin(ctx context.Context, kubeletConfig, config []byte, flags []string) error {
	if err := os.MkdirAll(ours, 0o755); err != nil {
		return err
	}
	changed := false
	for name, text := range map[string][]byte{kubeletFile: kubeletConfig, "config.yaml": config} {
		file := filepath.Join(ours, name)
		if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, text) {
			continue
		}
		changed = true
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return err
		}
	}
	running := exec.Command("systemctl", "is-active", "--quiet", pluginUnit).Run() == nil
	if running && !changed {
		return answers(ctx, "http://"+pluginAddr+"/readyz")
	}
	_ = exec.Command("systemctl", "stop", pluginUnit).Run()
	_ = exec.Command("systemctl", "reset-failed", pluginUnit).Run()
	run := append([]string{"--unit=" + pluginUnit, "--slice=system.slice", "-p", "StandardError=append:" + setup.Logs + "/plugin.log",
		"-p", "StandardOutput=append:" + setup.Logs + "/plugin.log", setup.Plugin, "run", "--config", filepath.Join(ours, "config.yaml"),
		"--state-dir", stateDir, "--metrics-address", pluginAddr, "--kubelet-podresources-socket", ""}, flags...)
	if out, err := exec.Command("systemd-run", run...).CombinedOutput(); err != nil {
		return fmt.Errorf("start the plugin: %w: %s", err, out)
	}
	return answers(ctx, "http://"+pluginAddr+"/readyz")
}

// answers waits until a URL answers with status 200.
func answers(ctx context.Context, url string) error {
	return until(ctx, url, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
}

// until tries again and again, for as long as a daemon may take to start.
func until(ctx context.Context, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	last := errors.New("no answer")
	for {
		err := try(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() == nil:
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, last)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// standIn puts the plugin's state file where the suites look for the kubelet's, and its PodResources API, too, where the kubelet
// has no CPUs to show there. It waits until the kubelet has made its own, which it does not look at afterwards: it would
// not start with the state file of another policy.
func standIn(ctx context.Context, socket bool) error {
	links := map[string]string{kubeletState: filepath.Join(stateDir, "memory_manager_state")}
	if socket {
		links[kubeletSocket] = filepath.Join(stateDir, "podresources.sock")
	}
	for place, target := range links {
		if err := until(ctx, "wait for the kubelet's own", func(context.Context) error {
			_, err := os.Stat(place)
			return err
		}); err != nil {
			return err
		}
		if err := os.Remove(place); err != nil {
			return err
		}
		if err := os.Symlink(target, place); err != nil {
			return err
		}
	}
	return nil
}
