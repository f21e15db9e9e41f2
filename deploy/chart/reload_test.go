package chart

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// TestWhatReloadsRestartsNothing changes keys of the configuration beside each other: the pods of a DaemonSet change with reloadConfig where
// the daemon takes a key at its start only, and without in any case. What mounts and arguments follow from changes them, too.
func TestWhatReloadsRestartsNothing(t *testing.T) {
	pods := func(values string) (first string, templates map[string]string) {
		t.Helper()
		got, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		templates = map[string]string{}
		for name, set := range objects[appsv1.DaemonSet](t, got, "DaemonSet") {
			templates[name] = set.Spec.Template.String()
		}
		return templates["nri-memory-manager"], templates
	}
	texts := []string{"{requestSources: [apiserver, swap]}", "{requestSources: [apiserver]}", "{requestSources: [kubelet, apiserver]}",
		"{requestSources: [apiserver, kubelet]}", "{requestSources: []}", "{requestSources: [swap]}"}
	for _, more := range []string{"resourceSlices: true", "resourceSlices: false", "events: true", "events: false", "events: true, evictRejectedAfter: 5m", "evictRejectedAfter: 0s", "nodeResourceTopology: true", "failurePolicy: Fail",
		"failurePolicy: Ignore", "dra: {enabled: true}", "dra: {enabled: false}", "dra: {enabled: true}, profile: Observe", "dra: {shares: [{limits: {memory: 10%}}]}", "profile: Observe",
		"memoryThrottlingFactor: 0.5", "memoryThrottlingFactor: null", "logLevel: debug", "kubeReserved: {memory: 1Gi}", "stallGuard: false",
		"annotationRules: [{namespaces: [a]}]", "topologyManagerPolicy: restricted"} {
		texts = append(texts, "{requestSources: [apiserver, swap], "+more+"}")
	}
	first, _ := pods("{reloadConfig: true, config: " + texts[0] + "}")
	restarting, _ := pods("{config: " + texts[0] + "}")
	kept := 0
	for _, text := range texts[1:] {
		got, err := render(t, "{config: "+texts[0]+"}")
		if err != nil {
			t.Fatal(err)
		}
		next, err := render(t, "{config: "+text+"}")
		if err != nil {
			t.Fatal(err)
		}
		keys := config(t, got, "nri-memory-manager").StartKeys(config(t, next, "nri-memory-manager"))
		reloaded, _ := pods("{reloadConfig: true, config: " + text + "}")
		if restarts := reloaded != first; restarts != (len(keys) > 0) {
			t.Errorf("%s restarts the daemons: %t; it changes at a start only: %s", text, restarts, strings.Join(keys, ", "))
		} else if !restarts {
			kept++
		}
		if again, _ := pods("{config: " + text + "}"); again == restarting {
			t.Errorf("%s restarts no daemon without reloadConfig", text)
		}
	}
	if kept < 10 {
		t.Errorf("%d of the changes are reloaded", kept)
	}
	const group = `, nodeGroups: [{name: a, nodeSelector: {a: b}, config: {events: %}}]}`
	_, before := pods(`{reloadConfig: true` + strings.Replace(group, "%", "true", 1))
	_, after := pods(`{reloadConfig: true` + strings.Replace(group, "%", "false", 1))
	for name, template := range before {
		if restarts := template != after[name]; restarts != (name == "nri-memory-manager-a") {
			t.Errorf("a change of the group's config restarts %s: %t", name, restarts)
		}
	}
}
