package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestOnlyObjectsOfTheKindAreTaken(t *testing.T) {
	s := store[*corev1.Pod, string]{Followed[*corev1.Pod, string]{Resource: "pods"}}
	for name, err := range map[string]error{
		"Add": s.Add(1), "Update": s.Update(1), "Delete": s.Delete(1), "Replace": s.Replace([]any{1}, ""),
	} {
		if err == nil || err.Error() != "follow pods in the API server: got a int, want a *v1.Pod" {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if got, err := s.Transformer()(1); got != 1 || err != nil {
		t.Errorf("got %v, %v", got, err)
	}
	if err := s.Resync(); err != nil {
		t.Error(err)
	}
}
