// Package checksum names the kubelet's checksum type: its name is part of the text that is summed.
package checksum

// Checksum is FNV-1a with 32 bits in the kubelet's 64-bit type.
type Checksum uint64
