package simulator

import (
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// complete fills in what the API server would: namespace, UID, and requests from limits. The UID follows from the name, so
// that two simulations of the same manifest agree.
func complete(pod *corev1.Pod) {
	if pod.Namespace == "" {
		pod.Namespace = corev1.NamespaceDefault
	}
	if pod.UID == "" {
		pod.UID = uidOf(pod.Namespace + "/" + pod.Name)
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			containers[i].Resources.Requests = orLimits(containers[i].Resources)
		}
	}
}

func orLimits(resources corev1.ResourceRequirements) corev1.ResourceList {
	requests := resources.Requests
	for name, limit := range resources.Limits {
		if _, ok := requests[name]; !ok {
			if requests == nil {
				requests = corev1.ResourceList{}
			}
			requests[name] = limit
		}
	}
	return requests
}

// uidOf returns a UUID made from a name.
func uidOf(name string) types.UID {
	sum := sha256.Sum256([]byte(name))
	sum[6] = sum[6]&0x0f | 0x80 // version 8, RFC 9562
	sum[8] = sum[8]&0x3f | 0x80
	text := hex.EncodeToString(sum[:16])
	return types.UID(text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:])
}

// idOf returns a runtime's id, 64 hexadecimal digits, made from a name.
func idOf(name string) string {
	sum := sha256.Sum256([]byte("id of " + name))
	return hex.EncodeToString(sum[:])
}
