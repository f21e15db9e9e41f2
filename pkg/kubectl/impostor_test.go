package kubectl

import (
	"bytes"
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Each pod is on the node of the pod that is asked about and has the daemons' labels: nothing is executed in it.
func TestNothingIsExecutedInAPodThatIsNotTheDaemons(t *testing.T) {
	web := pod("web", "worker-1", corev1.PodRunning)
	const none = "no daemon runs on node worker-1: there is no pod of DaemonSet kube-system/nri-memory-manager; see its node selector and tolerations"
	const impostor = none + "; pod kube-system/daemon-worker-1 has the labels app.kubernetes.io/name=nri-memory-manager, and is not asked: " +
		"it is none of the DaemonSet's, or has no container nri-memory-manager"
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"without an owner":         {func(p *corev1.Pod) { p.OwnerReferences = nil }, impostor},
		"of another DaemonSet":     {func(p *corev1.Pod) { p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = "other", "other" }, impostor},
		"of one with the name":     {func(p *corev1.Pod) { p.OwnerReferences[0].UID = "made-up" }, impostor},
		"of one without a name":    {func(p *corev1.Pod) { p.OwnerReferences[0].Name = "" }, impostor},
		"of a ReplicaSet":          {func(p *corev1.Pod) { p.OwnerReferences[0].Kind = "ReplicaSet" }, impostor},
		"of another API's":         {func(p *corev1.Pod) { p.OwnerReferences[0].APIVersion = "evil.example/v1" }, impostor},
		"owned, not controlled":    {func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, impostor},
		"with another container":   {func(p *corev1.Pod) { p.Spec.Containers[1].Name = "shell" }, impostor},
		"without the labels":       {func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web"} }, none},
		"in another namespace":     {func(p *corev1.Pod) { p.Namespace = "evil" }, none},
		"not its selector's label": {func(p *corev1.Pod) { p.Labels["release"] = "" }, impostor},
	} {
		t.Run(name, func(t *testing.T) {
			set := daemonSet()
			set.Spec.Selector.MatchLabels = map[string]string{"app.kubernetes.io/name": "nri-memory-manager", "release": "one"}
			right := daemonPod("worker-2")
			right.Labels["release"] = "one"
			wrong := daemonPod("worker-1")
			wrong.Labels["release"] = "one"
			test.change(&wrong)
			s := &server{nodes: []corev1.Node{nodeNamed("worker-1")}, pods: []corev1.Pod{web, wrong, right}, sets: nil}
			s.sets = append(s.sets, set)
			c := s.cluster(t, func(_ context.Context, d *daemon, command []string) (output, error) {
				t.Errorf("%v is executed in pod %s/%s", command, d.namespace, d.pod)
				return output{}, nil
			})
			var text bytes.Buffer
			if err := c.showPod(t.Context(), &text, "shop", "web", "explain", "shop/web"); err == nil || err.Error() != test.want || text.Len() > 0 {
				t.Errorf("error %v\nwant  %s", err, test.want)
			}
			rows, err := c.survey(t.Context())
			if err != nil || len(rows) != 1 || rows[0].State != noDaemon {
				t.Errorf("%+v, %v", rows, err)
			}
		})
	}
}
