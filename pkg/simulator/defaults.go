package simulator

import (
	"crypto/sha256"
	"encoding/hex"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/podinfo"
)

// complete fills in what the API server would: namespace, UID, and resources. The UID follows from the name, so that two
// simulations of the same manifest agree.
func complete(pod *corev1.Pod) {
	if pod.Namespace == "" {
		pod.Namespace = corev1.NamespaceDefault
	}
	if pod.UID == "" {
		pod.UID = uidOf(pod.Namespace + "/" + pod.Name)
	}
	podinfo.SetDefaults(pod)
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
