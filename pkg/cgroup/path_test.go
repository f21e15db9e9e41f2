package cgroup

import (
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

const (
	uid      = "5f1c0a1e-3c1d-4b7a-9a52-0d5e6f1a2b3c"
	unitUID  = "5f1c0a1e_3c1d_4b7a_9a52_0d5e6f1a2b3c"
	staticID = "a7b2f0c91d3e4f5a6b7c8d9e0f1a2b3c"
)

func TestPodPathsOfBothDriversAndRuntimes(t *testing.T) {
	const (
		g = memoryqos.Guaranteed
		b = memoryqos.Burstable
		e = memoryqos.BestEffort
	)
	tests := map[string]struct {
		parent string
		want   PodPath
	}{
		"cgroupfs, Guaranteed": {"/kubepods/pod" + uid,
			PodPath{"kubepods", "", "kubepods/pod" + uid, g, Cgroupfs}},
		"cgroupfs, Burstable": {"/kubepods/burstable/pod" + uid,
			PodPath{"kubepods", "kubepods/burstable", "kubepods/burstable/pod" + uid, b, Cgroupfs}},
		"cgroupfs, BestEffort": {"/kubepods/besteffort/pod" + uid,
			PodPath{"kubepods", "kubepods/besteffort", "kubepods/besteffort/pod" + uid, e, Cgroupfs}},
		"cgroupfs, static pod": {"/kubepods/burstable/pod" + staticID,
			PodPath{"kubepods", "kubepods/burstable", "kubepods/burstable/pod" + staticID, b, Cgroupfs}},
		"cgroupfs, relative with a slash at the end": {"kubepods/pod1/",
			PodPath{"kubepods", "", "kubepods/pod1", g, Cgroupfs}},
		"cgroupfs, --cgroup-root": {"/kubelet/inner/kubepods/burstable/pod1",
			PodPath{"kubelet/inner/kubepods", "kubelet/inner/kubepods/burstable", "kubelet/inner/kubepods/burstable/pod1", b, Cgroupfs}},
		"cgroupfs, --cgroup-root with our name": {"/kubepods/kubepods/pod1",
			PodPath{"kubepods/kubepods", "", "kubepods/kubepods/pod1", g, Cgroupfs}},
		"cgroupfs, system, Guaranteed": {"/kubepods/system/pod" + uid,
			PodPath{"kubepods", "", "kubepods/system/pod" + uid, g, Cgroupfs}},
		"cgroupfs, system, Burstable": {"/kubepods/system/burstable/pod" + uid,
			PodPath{"kubepods", "kubepods/system/burstable", "kubepods/system/burstable/pod" + uid, b, Cgroupfs}},
		"cgroupfs, system, BestEffort, --cgroup-root": {"/root/kubepods/system/besteffort/pod1",
			PodPath{"root/kubepods", "root/kubepods/system/besteffort", "root/kubepods/system/besteffort/pod1", e, Cgroupfs}},
		"cgroupfs, --cgroup-root called system": {"/system/kubepods/pod1",
			PodPath{"system/kubepods", "", "system/kubepods/pod1", g, Cgroupfs}},
		"systemd, system, Guaranteed": {"/kubepods.slice/kubepods-system.slice/kubepods-system-pod" + unitUID + ".slice",
			PodPath{"kubepods.slice", "", "kubepods.slice/kubepods-system.slice/kubepods-system-pod" + unitUID + ".slice", g, Systemd}},
		"systemd, system, Burstable": {"/kubepods.slice/kubepods-system.slice/kubepods-system-burstable.slice/kubepods-system-burstable-pod" + unitUID + ".slice",
			PodPath{"kubepods.slice", "kubepods.slice/kubepods-system.slice/kubepods-system-burstable.slice",
				"kubepods.slice/kubepods-system.slice/kubepods-system-burstable.slice/kubepods-system-burstable-pod" + unitUID + ".slice", b, Systemd}},
		"systemd, system, base name, Guaranteed": {"kubepods-system-pod" + unitUID + ".slice",
			PodPath{"kubepods.slice", "", "kubepods.slice/kubepods-system.slice/kubepods-system-pod" + unitUID + ".slice", g, Systemd}},
		"systemd, system, base name, BestEffort": {"kubepods-system-besteffort-pod1.slice",
			PodPath{"kubepods.slice", "kubepods.slice/kubepods-system.slice/kubepods-system-besteffort.slice",
				"kubepods.slice/kubepods-system.slice/kubepods-system-besteffort.slice/kubepods-system-besteffort-pod1.slice", e, Systemd}},
		"systemd, system, --cgroup-root": {"a-kubepods-system-burstable-pod1.slice",
			PodPath{"a.slice/a-kubepods.slice", "a.slice/a-kubepods.slice/a-kubepods-system.slice/a-kubepods-system-burstable.slice",
				"a.slice/a-kubepods.slice/a-kubepods-system.slice/a-kubepods-system-burstable.slice/a-kubepods-system-burstable-pod1.slice", b, Systemd}},
		"systemd, Guaranteed": {"/kubepods.slice/kubepods-pod" + unitUID + ".slice",
			PodPath{"kubepods.slice", "", "kubepods.slice/kubepods-pod" + unitUID + ".slice", g, Systemd}},
		"systemd, Burstable": {"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unitUID + ".slice",
			PodPath{"kubepods.slice", "kubepods.slice/kubepods-burstable.slice",
				"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + unitUID + ".slice", b, Systemd}},
		"systemd, base name, Guaranteed": {"kubepods-pod" + unitUID + ".slice",
			PodPath{"kubepods.slice", "", "kubepods.slice/kubepods-pod" + unitUID + ".slice", g, Systemd}},
		"systemd, base name, BestEffort": {"kubepods-besteffort-pod" + unitUID + ".slice",
			PodPath{"kubepods.slice", "kubepods.slice/kubepods-besteffort.slice",
				"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + unitUID + ".slice", e, Systemd}},
		"systemd, base name, --cgroup-root": {"kubelet-kubepods-burstable-pod1.slice",
			PodPath{"kubelet.slice/kubelet-kubepods.slice", "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice",
				"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod1.slice", b, Systemd}},
		"systemd, --cgroup-root": {"/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod1.slice",
			PodPath{"a.slice/a-b.slice/a-b-kubepods.slice", "", "a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-pod1.slice", g, Systemd}},
		"systemd, below another manager": {"/user.slice/user@0.service/kubepods.slice/kubepods-pod1.slice",
			PodPath{"user.slice/user@0.service/kubepods.slice", "", "user.slice/user@0.service/kubepods.slice/kubepods-pod1.slice", g, Systemd}},
	}
	system := map[string]string{
		"cgroupfs, system, Guaranteed": "kubepods/system", "cgroupfs, system, Burstable": "kubepods/system",
		"cgroupfs, system, BestEffort, --cgroup-root": "root/kubepods/system",
		"systemd, system, Guaranteed":                 "kubepods.slice/kubepods-system.slice", "systemd, system, Burstable": "kubepods.slice/kubepods-system.slice",
		"systemd, system, base name, Guaranteed": "kubepods.slice/kubepods-system.slice",
		"systemd, system, base name, BestEffort": "kubepods.slice/kubepods-system.slice",
		"systemd, system, --cgroup-root":         "a.slice/a-kubepods.slice/a-kubepods-system.slice",
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParsePod(test.parent)
			if err != nil {
				t.Fatal(err)
			}
			if got.System() != system[name] {
				t.Errorf("system partition %q, want %q", got.System(), system[name])
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestHostileCgroupParentsAreRefused(t *testing.T) {
	const notPods = "not a pod's"
	tests := map[string]struct{ parent, want string }{
		"empty":                     {"", "is empty"},
		"root":                      {"/", "is empty"},
		"slashes":                   {"///", "is empty"},
		"dots at the end":           {"/kubepods/..", `must not contain the component ".."`},
		"dots in between":           {"/kubepods/../kubepods/pod1", `must not contain the component ".."`},
		"dots in front":             {"../kubepods/pod1", `must not contain the component ".."`},
		"a dot":                     {"/kubepods/./pod1", `must not contain the component "."`},
		"nothing between slashes":   {"/kubepods//pod1", `must not contain the component ""`},
		"a zero byte":               {"/kubepods/pod1\x00", `must not contain the character '\x00'`},
		"a line feed":               {"/kubepods/pod1\n", `must not contain the character '\n'`},
		"not ASCII":                 {"/kubepods/podä", "must not contain the character"},
		"endless":                   {"/kubepods/pod" + strings.Repeat("1", 5000), "is longer than 4096 bytes"},
		"no kubepods":               {"/system.slice/pod1", notPods},
		"kubepods itself":           {"/kubepods", notPods},
		"a QoS level":               {"/kubepods/burstable", notPods},
		"a container":               {"/kubepods/burstable/pod1/abc", notPods},
		"too deep":                  {"/kubepods/burstable/x/pod1", notPods},
		"the system partition":      {"/kubepods/system", notPods},
		"a system QoS level":        {"/kubepods/system/burstable", notPods},
		"a system container":        {"/kubepods/system/burstable/pod1/abc", notPods},
		"system twice":              {"/kubepods/system/system/pod1", notPods},
		"system below a QoS level":  {"/kubepods/burstable/system/pod1", notPods},
		"unknown system level":      {"/kubepods/system/guaranteed/pod1", notPods},
		"system slice below QoS":    {"kubepods-burstable-system-pod1.slice", notPods},
		"system slice of no pod":    {"kubepods-system.slice", notPods},
		"system slice that is flat": {"/kubepods.slice/kubepods-system-pod1.slice", notPods},
		"QoS slice without prefix":  {"/kubepods.slice/burstable.slice/burstable-pod1.slice", notPods},
		"unknown QoS level":         {"/kubepods/guaranteed/pod1", notPods},
		"no uid":                    {"/kubepods/pod", notPods},
		"not called pod":            {"/kubepods/x1", notPods},
		"kubepods as a pod":         {"/kubepods/kubepods", notPods},
		"slice of no pod":           {"kubepods-burstable.slice", notPods},
		"slice of nothing":          {".slice", notPods},
		"slice with a dashed uid":   {"kubepods-burstable-pod1-2.slice", notPods},
		"slice of another parent":   {"/kubepods.slice/kubepods-burstable.slice/kubepods-besteffort-pod1.slice", notPods},
		"slice of another kubepods": {"/a-kubepods.slice/b-kubepods-pod1.slice", notPods},
		"slice without uid":         {"kubepods-pod.slice", notPods},
		"slice below cgroupfs":      {"/kubepods/kubepods-pod1.slice", notPods},
		"dashes only":               {"---.slice", notPods},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ParsePod(test.parent)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "cgroup parent ") {
				t.Errorf("got %+v, %v, want %s", got, err, test.want)
			}
		})
	}
}

func mustPod(t testing.TB, parent string) PodPath {
	t.Helper()
	p, err := ParsePod(parent)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestContainerPaths(t *testing.T) {
	const (
		fs   = "/kubepods/burstable/pod1"
		unit = "kubepods-burstable-pod1.slice"
		full = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
	)
	tests := map[string]struct{ parent, cgroups, id, want, err string }{
		"containerd, cgroupfs":          {fs, fs + "/abc", "abc", "kubepods/burstable/pod1/abc", ""},
		"CRI-O, cgroupfs":               {fs, fs + "/crio-abc", "abc", "kubepods/burstable/pod1/crio-abc", ""},
		"relative":                      {fs, fs[1:] + "/abc", "abc", "kubepods/burstable/pod1/abc", ""},
		"containerd, systemd":           {full, unit + ":cri-containerd:abc", "abc", full[1:] + "/cri-containerd-abc.scope", ""},
		"CRI-O, systemd":                {unit, unit + ":crio:abc", "abc", full[1:] + "/crio-abc.scope", ""},
		"systemd, full slice":           {unit, full + ":crio:abc", "abc", full[1:] + "/crio-abc.scope", ""},
		"systemd, no runtime":           {unit, unit + "::abc", "abc", full[1:] + "/abc.scope", ""},
		"systemd, as a path":            {unit, full + "/crio-abc.scope", "abc", full[1:] + "/crio-abc.scope", ""},
		"another pod":                   {fs, "/kubepods/burstable/pod2/abc", "abc", "", "not in the pod's cgroup /kubepods/burstable/pod1"},
		"outside":                       {fs, fs + "/../../../x/abc", "abc", "", `must not contain the component ".."`},
		"another container":             {fs, fs + "/abd", "abc", "", "does not end in the container's id"},
		"too deep":                      {fs, fs + "/x/abc", "abc", "", "not in the pod's cgroup"},
		"empty":                         {fs, "", "abc", "", "is empty"},
		"no id":                         {fs, fs + "/abc", "", "", "the id is empty"},
		"id with a slash":               {fs, fs + "/a/b", "a/b", "", "the id is not a name"},
		"id of dots":                    {fs, fs + "/..", "..", "", `the id must not contain the component ".."`},
		"id that is a slice":            {unit, unit + ":crio:x.slice", "x.slice", "", "the id is not a name"},
		"systemd form below cgroupfs":   {fs, "pod1:cri-containerd:abc", "abc", "", "want <slice>:<runtime>:<id>"},
		"systemd, two parts":            {unit, unit + ":abc", "abc", "", "want <slice>:<runtime>:<id>"},
		"systemd, another slice":        {unit, "system.slice:crio:abc", "abc", "", "not in the pod's slice kubepods-burstable-pod1.slice"},
		"systemd, another container":    {unit, unit + ":crio:abd", "abc", "", "does not end in the container's id"},
		"systemd, runtime with a slash": {unit, unit + ":../x:abc", "abc", "", `the runtime "../x" is not a name`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := mustPod(t, test.parent).Container(test.cgroups, test.id)
			if test.err == "" && (err != nil || got != test.want) {
				t.Errorf("got %q, %v, want %q", got, err, test.want)
			}
			if test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Errorf("got %q, %v, want error %q", got, err, test.err)
			}
		})
	}
}

func TestUnitIsTheSliceOrScope(t *testing.T) {
	for cgroup, want := range map[string]string{
		"kubepods.slice": "kubepods.slice", "a.slice/crio-1.scope": "crio-1.scope", "kubepods/pod1": "", "a.slice/crio-1.scope/container": "",
	} {
		if got := Unit(cgroup); got != want {
			t.Errorf("%s: %q, want %q", cgroup, got, want)
		}
	}
}

func FuzzParsePod(f *testing.F) {
	f.Add("/kubepods/burstable/pod1", "/kubepods/burstable/pod1/abc", "abc")
	f.Add("kubepods-besteffort-pod1.slice", "kubepods-besteffort-pod1.slice:crio:abc", "abc")
	f.Add("/x/../kubepods/pod1", "::", "..")
	f.Add("a-kubepods-pod1.slice", "a-kubepods-pod1.slice:../..:abc", "abc")
	f.Fuzz(func(t *testing.T, parent, cgroups, id string) {
		p, err := ParsePod(parent)
		if err != nil {
			if p != (PodPath{}) {
				t.Errorf("%+v with error %v", p, err)
			}
			return
		}
		for _, dir := range []string{p.Kubepods, p.Pod} {
			if !Inside(dir) {
				t.Errorf("%q: %q is not inside", parent, dir)
			}
		}
		above := p.Kubepods
		if (p.QoS == "") != (p.Class == memoryqos.Guaranteed) {
			t.Errorf("%q: %+v", parent, p)
		}
		if p.QoS != "" {
			if above = p.QoS; path.Dir(p.QoS) != p.Kubepods {
				t.Errorf("%q: %+v", parent, p)
			}
		}
		if path.Dir(p.Pod) != above || strings.HasSuffix(strings.TrimSuffix(p.Pod, ".slice"), "pod") {
			t.Errorf("%q: %+v", parent, p)
		}
		if c, err := p.Container(cgroups, id); err == nil && (!Inside(c) || path.Dir(c) != p.Pod || !strings.Contains(c, id)) {
			t.Errorf("%q %q: container %q", cgroups, id, c)
		}
	})
}
