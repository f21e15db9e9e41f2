package chart

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func build(t *testing.T, folder string) string {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("../kustomize", folder))
	if err != nil {
		t.Fatal(err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestOverlaysBuildAsBefore(t *testing.T) {
	for _, overlay := range []string{"default", "kubelet", "openshift"} {
		t.Run(overlay, func(t *testing.T) {
			got := build(t, filepath.Join("overlays", overlay))
			compareGolden(t, filepath.Join("testdata", "kustomize-"+overlay+".yaml"), got)
			decodeStrictly(t, got)
		})
	}
}

// TestBothWaysRunTheSamePod keeps the kustomizations and the chart from drifting apart.
func TestBothWaysRunTheSamePod(t *testing.T) {
	for values, kustomization := range map[string]string{`{}`: "base", `{cgroupDriver: cgroupfs}`: "../chart/testdata/cgroupfs"} {
		rendered, err := render(t, values)
		if err != nil {
			t.Fatal(err)
		}
		fromChart, built := daemonSet(t, rendered), daemonSet(t, build(t, kustomization))
		if difference := cmp.Diff(fromChart.Spec.Template.Spec, built.Spec.Template.Spec); difference != "" {
			t.Errorf("the pod of the chart with %s (-) and of the kustomization %s (+) differ:\n%s", values, kustomization, difference)
		}
	}
}

// TestComponentsGiveTheRightsOfTheChart builds an overlay of a user on the one that needs no rights of its own.
func TestComponentsGiveTheRightsOfTheChart(t *testing.T) {
	built := build(t, "../chart/testdata/components")
	decodeStrictly(t, built)
	rendered, err := render(t, `{config: {requestSources: [kubelet, unified, annotation, swap, oomscore], events: true, evictRejectedAfter: 5m, nodeResourceTopology: true, resourceSlices: true, dra: {enabled: true}}}`)
	if err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(rights(t, rendered), rights(t, built)); difference != "" {
		t.Errorf("the rights of the chart (-) and of the components (+) differ:\n%s", difference)
	}
	pod := daemonSet(t, built).Spec.Template.Spec
	if !*pod.AutomountServiceAccountToken {
		t.Error("the pod has no token")
	}
	fromChart := daemonSet(t, rendered).Spec.Template.Spec
	for _, volume := range []string{"kubelet-plugins-registry", "cdi"} {
		of := func(pod corev1.PodSpec) (parts []any) {
			for _, v := range pod.Volumes {
				if v.Name == volume {
					parts = append(parts, v)
				}
			}
			for _, m := range pod.Containers[0].VolumeMounts {
				if m.Name == volume {
					parts = append(parts, m, slices.Contains(pod.Containers[0].Args, "--cdi-dir="+m.MountPath) || slices.Contains(pod.Containers[0].Args, "--plugin-registry="+m.MountPath))
				}
			}
			return parts
		}
		if difference := cmp.Diff(of(fromChart), of(pod)); difference != "" || len(of(pod)) != 3 {
			t.Errorf("volume %s of the chart (-) and of the component (+):\n%s", volume, difference)
		}
	}
	policies := func(manifests string) map[string]admissionv1.ValidatingAdmissionPolicySpec {
		all := map[string]admissionv1.ValidatingAdmissionPolicySpec{}
		for name, policy := range objects[admissionv1.ValidatingAdmissionPolicy](t, manifests, "ValidatingAdmissionPolicy") {
			all[name] = policy.Spec
		}
		return all
	}
	if difference := cmp.Diff(policies(rendered), policies(built)); difference != "" || len(policies(built)) != 2 {
		t.Errorf("the policies of the chart (-) and of the component (+) differ:\n%s", difference)
	}
}

// rights are the rules of all ClusterRoles that are bound to the plugin's ServiceAccount.
func rights(t *testing.T, manifests string) (rules []rbacv1.PolicyRule) {
	t.Helper()
	bound := map[string]bool{}
	documents := strings.Split(manifests, "\n---\n")
	for _, document := range documents {
		var binding rbacv1.ClusterRoleBinding
		if !strings.Contains(document, "\nkind: ClusterRoleBinding\n") {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), &binding); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(binding.Subjects, rbacv1.Subject{Kind: "ServiceAccount", Name: "nri-memory-manager", Namespace: "kube-system"}) {
			bound[binding.RoleRef.Name] = true
		}
	}
	for _, document := range documents {
		var role rbacv1.ClusterRole
		if !strings.Contains(document, "\nkind: ClusterRole\n") {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		if bound[role.Name] {
			rules = append(rules, role.Rules...)
		}
	}
	if len(rules) == 0 {
		t.Error("no rights at all")
	}
	slices.SortFunc(rules, func(a, b rbacv1.PolicyRule) int { return strings.Compare(a.String(), b.String()) })
	return slices.CompactFunc(rules, func(a, b rbacv1.PolicyRule) bool { return a.String() == b.String() }) // components share some
}

func daemonSet(t *testing.T, manifests string) appsv1.DaemonSet {
	t.Helper()
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		if !strings.Contains(document, "\nkind: DaemonSet\n") {
			continue
		}
		var set appsv1.DaemonSet
		if err := yaml.UnmarshalStrict([]byte(document), &set); err != nil {
			t.Fatal(err)
		}
		for i, volume := range set.Spec.Template.Spec.Volumes {
			if volume.ConfigMap != nil { // kustomize adds a hash to its name
				set.Spec.Template.Spec.Volumes[i].ConfigMap.Name = ""
			}
		}
		return set
	}
	t.Fatal("no DaemonSet was rendered")
	return appsv1.DaemonSet{}
}
