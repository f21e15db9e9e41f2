package checkpoint

import "github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"

// Encode returns the state file's text, which every kubelet from 1.21 reads. Blocks that know their per-node amounts
// carry them in a key that the kubelet skips.
func Encode(policy string, s memorymanager.State) []byte { return nil }
