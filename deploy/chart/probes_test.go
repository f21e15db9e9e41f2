package chart

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// A daemon that hangs is restarted within 15 seconds of the first probe that it misses, however it was installed.
func TestAHungDaemonIsRestarted(t *testing.T) {
	const seconds = 15
	rendered, err := render(t, "{}")
	if err != nil {
		t.Fatal(err)
	}
	for name, manifests := range map[string]string{"chart": rendered, "kustomize": build(t, "base")} {
		probe := daemonSet(t, manifests).Spec.Template.Spec.Containers[0].LivenessProbe
		if took := probe.PeriodSeconds * probe.FailureThreshold; probe.HTTPGet.Path != "/healthz" || took > seconds {
			t.Errorf("%s: %s has to fail for %d s, want /healthz and at most %d", name, probe.HTTPGet.Path, took, seconds)
		}
		// One that is busy may miss some, and answer late.
		if probe.FailureThreshold < 3 || probe.TimeoutSeconds < 3 {
			t.Errorf("%s: %d probes of %d s, want 3 or more of 3 or more", name, probe.FailureThreshold, probe.TimeoutSeconds)
		}
	}
	unit, err := os.ReadFile("../systemd/nri-memory-manager.service")
	if err != nil {
		t.Fatal(err)
	}
	watchdog := regexp.MustCompile(`(?m)^WatchdogSec=(\d+)$`).FindSubmatch(unit)
	if watchdog == nil {
		t.Fatal("the unit has no WatchdogSec")
	}
	if s, err := strconv.Atoi(string(watchdog[1])); err != nil || s > seconds || s < 10 {
		t.Errorf("WatchdogSec is %d, want 10 to %d", s, seconds)
	}
}
