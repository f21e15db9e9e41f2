package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/cgroup"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// TestSystemPodsAreProtectedInTheirPartition has pods in kubepods and in its system partition (KEP-5894), under both drivers.
func TestSystemPodsAreProtectedInTheirPartition(t *testing.T) {
	const mi = 1 << 20
	all := []struct {
		parent, base string // cgroupfs, and systemd's name without ".slice"
		class        memoryqos.QOSClass
		request      uint64
	}{
		{"kubepods/pod1", "kubepods-pod1", memoryqos.Guaranteed, 1 * mi},
		{"kubepods/burstable/pod2", "kubepods-burstable-pod2", memoryqos.Burstable, 2 * mi},
		{"kubepods/system/pod3", "kubepods-system-pod3", memoryqos.Guaranteed, 4 * mi},
		{"kubepods/system/burstable/pod4", "kubepods-system-burstable-pod4", memoryqos.Burstable, 8 * mi},
		{"kubepods/system/besteffort/pod5", "kubepods-system-besteffort-pod5", memoryqos.BestEffort, 0},
	}
	for driver, test := range map[string]struct {
		parent func(i int) string
		want   map[string]string // level, memory.min and memory.low by cgroup
	}{
		"cgroupfs": {func(i int) string { return "/" + all[i].parent }, map[string]string{
			"kubepods": "kubepods 15 10", "kubepods/burstable": "burstable - 2",
			"kubepods/system": "system 12 8", "kubepods/system/burstable": "burstable - 8",
		}},
		"systemd": {func(i int) string { return all[i].base + ".slice" }, map[string]string{
			"kubepods.slice": "kubepods 15 10", "kubepods.slice/kubepods-burstable.slice": "burstable - 2",
			"kubepods.slice/kubepods-system.slice":                                 "system 12 8",
			"kubepods.slice/kubepods-system.slice/kubepods-system-burstable.slice": "burstable - 8",
		}},
	} {
		t.Run(driver, func(t *testing.T) {
			l := newLedger(t, "guaranteedHeadroom: 0")
			now := time.Unix(1000, 0)
			for i, p := range all {
				uid := fmt.Sprint(i + 1)
				pod := Pod{ID: "sandbox" + uid, UID: uid, Namespace: "kube-system", Name: uid, CgroupParent: test.parent(i)}
				limit := int64(p.request)
				effects := l.Step(now, CreateContainer{
					Pod:       pod,
					Container: Container{ID: "id" + uid, PodID: pod.ID, Name: "main", Resources: Resources{MemoryLimit: &limit}},
					Facts: Facts{PodInfo: pods.Answer{Source: memoryqos.SourceKubelet, Pod: &pods.Pod{
						Ref: pod.Ref(), Class: p.class, Containers: []pods.Container{{Name: "main", Request: p.request, Limit: p.request}},
					}}},
				})
				if effects.Err != nil {
					t.Fatal(effects.Err)
				}
				// Only levels with pods are there; each of the first four pods brings one more.
				if got, want := len(l.View().Ancestors), min(i+1, len(test.want)); got != want {
					t.Errorf("with %d pods there are %d parents, want %d", i+1, got, want)
				}
			}
			text := func(bytes *uint64) string {
				if bytes == nil {
					return "-"
				}
				return fmt.Sprint(*bytes / mi)
			}
			for of, targets := range map[string][]cgroup.Target{"files": l.Targets(), "view": l.View().Ancestors} {
				got := map[string]string{}
				for _, target := range targets {
					if level := target.Level; level != "pod" && level != "container" {
						got[target.Cgroup] = level + " " + text(target.Values.Min) + " " + text(target.Values.Low)
					}
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("%s: %s", of, diff)
				}
			}
		})
	}
}
