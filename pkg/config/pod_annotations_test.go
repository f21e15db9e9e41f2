package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
)

// numbered are annotations whose keys are in the order of their numbers.
func numbered(n int, key, value string) map[string]string {
	many := make(map[string]string, n)
	for i := range n {
		many[fmt.Sprintf(key, i)] = value
	}
	return many
}

func TestAnnotationsBeyondTheLimitsAreOneProblem(t *testing.T) {
	const container = "numa" + ours + "/container.c%04d"
	long := "numa" + ours + "/container.%04d" + strings.Repeat("c", 200-len("numa"+ours+"/container.")-4)
	for name, tc := range map[string]struct {
		annotations map[string]string
		kept        string // the last container whose annotation counts
		ignored     string // the first whose does not
		problem     string
	}{
		"as many as may be": {annotations: numbered(mostAnnotations, container, "required"), kept: "c0499"},
		"too many": {
			annotations: numbered(3000, container, "required"), kept: "c0499", ignored: "c0500",
			problem: `metadata.annotations[numa.memory-manager.noderesource.dev/container.c0500]: Forbidden: this and all later keys ` +
				`are ignored: the pod has 3000 annotations of this plugin with 175.8Ki in all, want at most 500 with 64Ki`,
		},
		"too large": {
			annotations: numbered(400, long, "none"), kept: fmt.Sprintf(long[len("numa"+ours+"/container."):], 320), ignored: fmt.Sprintf(long[len("numa"+ours+"/container."):], 321),
			problem: `metadata.annotations["numa.memory-manager.noderesource.dev/container.0321` + strings.Repeat("c", 29) + `…"]: Forbidden: ` +
				`this and all later keys are ignored: the pod has 400 annotations of this plugin with 79.69Ki in all, want at most 500 with 64Ki`,
		},
		"values count as far as they are kept": {annotations: numbered(400, container, strings.Repeat("v", 1000)), kept: ""},
		"others' annotations do not count":     {annotations: numbered(5000, "example.com/%d", strings.Repeat("v", 100))},
	} {
		t.Run(name, func(t *testing.T) {
			read := ReadAnnotations(tc.annotations)
			for range 5 { // whichever order the map has
				if again := ReadAnnotations(tc.annotations); !cmp.Equal(read, again, cmp.AllowUnexported(PodAnnotations{}, podAnnotation{})) {
					t.Fatal("the same annotations are read differently")
				}
			}
			var want []Problem
			if tc.problem != "" {
				want = []Problem{{Annotation: "numa" + ours + "/container." + tc.ignored, Message: tc.problem}}
			}
			for container, numa := range map[string]NUMAPreference{tc.kept: kept(tc.kept, tc.annotations), tc.ignored: "", "other": "", "": ""} {
				wishes, problems := read.Wishes(container, all())
				if wishes.NUMA != numa {
					t.Errorf("container %q wishes %q, want %q", container, wishes.NUMA, numa)
				}
				if diff := cmp.Diff(want, problems); diff != "" {
					t.Errorf("problems of container %q (-want +got):\n%s", container, diff)
				}
			}
		})
	}
}

func kept(container string, annotations map[string]string) NUMAPreference {
	return NUMAPreference(annotations["numa"+ours+"/container."+container])
}

func TestTheLimitIsNamedBesideManyProblems(t *testing.T) {
	_, problems := ReadAnnotations(numbered(5000, "k%04d"+ours, "")).Wishes("app", all())
	if len(problems) != mostProblems {
		t.Fatalf("%d problems, want %d", len(problems), mostProblems)
	}
	if last := problems[mostProblems-1]; last.Annotation != "k0500"+ours || !strings.Contains(last.Message, "the pod has 5000 annotations") {
		t.Errorf("the last problem is %v", last)
	}
}

func TestAKeyThatIsNotReadIsShortened(t *testing.T) {
	_, problems := ReadAnnotations(map[string]string{strings.Repeat("k", 1<<20) + ours: ""}).Wishes("", all())
	if len(problems) != 1 || len(problems[0].Annotation) != longestKey || len(problems[0].Message) > 400 {
		t.Errorf("%.1000v", problems)
	}
}

func TestProblemsOfAllAnnotationsOfAPod(t *testing.T) {
	const at, numa = "metadata.annotations[numa" + ours, "numa" + ours
	pods := []string{"app", "sidecar"}
	wrong := func(scope, value string) string {
		return at + scope + `]: Unsupported value: "` + value + `": supported values: "none", "preferred", "required"`
	}
	astray := func(name, hint string) string {
		return at + "/container." + name + `]: Not found: "` + name + `": the pod has no such container` + hint
	}
	for name, test := range map[string]struct {
		annotations map[string]string
		containers  []string
		want        []string
	}{
		"none": {nil, pods, nil},
		"good": {map[string]string{numa: "none", numa + "/container.sidecar": "required"}, pods, nil},
		"of the pod and of two containers": {map[string]string{numa: "a", numa + "/container.sidecar": "c", numa + "/container.app": "b"}, pods,
			[]string{wrong("", "a"), wrong("/container.app", "b"), wrong("/container.sidecar", "c")}},
		"no such container":            {map[string]string{numa + "/container.sidcar": "none"}, pods, []string{astray("sidcar", `, did you mean "sidecar"?`)}},
		"none with a similar name":     {map[string]string{numa + "/container.proxy": "none"}, pods, []string{astray("proxy", "")}},
		"that is wrong besides":        {map[string]string{numa + "/container.proxy": "x"}, pods, []string{astray("proxy", "")}},
		"containers that are unknown":  {map[string]string{numa + "/container.proxy": "none"}, nil, nil},
		"and a value that is wrong":    {map[string]string{numa + "/container.proxy": "x"}, nil, []string{wrong("/container.proxy", "x")}},
		"a name that no container has": {map[string]string{numa + "/container.\n": "none"}, pods, []string{`metadata.annotations["numa` + ours + `/container.\n"]: Not found: "\n": the pod has no such container`}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, problem := range ReadAnnotations(test.annotations).Problems(all(), test.containers) {
				got = append(got, problem.Message)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for _, containers := range [][]string{nil, {"app"}} { // with values that are wrong, or for containers that are not there
		problems := ReadAnnotations(numbered(5000, numa+"/container.c%04d", "x")).Problems(all(), containers)
		if len(problems) != mostProblems || problems[0].Annotation != numa+"/container.c0000" || !strings.Contains(problems[mostProblems-1].Message, "the pod has 5000 annotations") {
			t.Errorf("%d problems from %v to %v, want the first %d with the limit", len(problems), problems[0], problems[len(problems)-1], mostProblems)
		}
	}
}

// A value does not change with what its callers do.
func TestPodAnnotationsDoNotChange(t *testing.T) {
	annotations := map[string]string{"memory-high" + ours: "1Gi", "x" + ours: ""}
	read := ReadAnnotations(annotations)
	wishes, problems := read.Wishes("app", all())
	*wishes.QoS.High, problems[0].Message = 1, ""
	annotations["memory-high"+ours] = "2Gi"
	high := uint64(1 << 30)
	wishes, problems = read.Wishes("app", all())
	if diff := cmp.Diff(Wishes{QoS: memoryqos.Overrides{High: &high}}, wishes); diff != "" || len(problems) != 1 || problems[0].Message == "" {
		t.Errorf("problems %v (-want +got):\n%s", problems, diff)
	}
}

// A pod as large as the API server admits: what is read once for the pod, and then for each of its containers.
func BenchmarkAnnotationsOfALargePod(b *testing.B) {
	const size, containers = 250 << 10, 150
	rules := all()
	var names []string
	for i := range containers {
		names = append(names, fmt.Sprintf("c%d", i))
	}
	for name, key := range map[string]string{
		"for each container": "a%d" + ours + "/container.c%d",
		"of the pod":         "a%d" + ours,
		"wrong scope":        "a%d.memory-manager.nri.io/a",
		"not ours":           "a%d.example.com/a",
	} {
		annotations := map[string]string{}
		for i, bytes := 0, 0; bytes < size; i++ {
			full := fmt.Sprintf(key, i)
			if strings.Count(key, "%d") == 2 {
				full = fmt.Sprintf(key, i, i%containers)
			}
			annotations[full] = ""
			bytes += len(full)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				read := ReadAnnotations(annotations)
				for _, container := range names {
					read.Wishes(container, rules)
				}
			}
		})
	}
}
