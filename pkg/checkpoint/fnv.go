package checkpoint

// The kubelet's checksum is FNV-1a with 32 bits over a text of the whole state:
// hash = (hash ^ byte) * prime for each byte.
const (
	fnvOffset uint32 = 2166136261
	fnvPrime  uint32 = 16777619
)

func fnv1a[T string | []byte](hash uint32, text T) uint32 {
	for i := range len(text) {
		hash = (hash ^ uint32(text[i])) * fnvPrime
	}
	return hash
}

// A span is a piece of text that is hashed again and again behind changing text. A byte changes only the low eight bits
// of the hash before the multiplication, and the low eight bits of a product depend on the low eight bits of its factors
// alone. So what a text adds to the hash is a function of the low eight bits before it, and the bits above them are
// only multiplied by prime^length:
//
//	hash(h, text) = hash(h & 0xff, text) + (h &^ 0xff) * prime^length
//
// A span remembers hash(low, text) for each low byte that it has met: a state file's checksum then costs one look-up
// per pod instead of every byte of it.
type span struct {
	text  []byte
	power uint32 // prime^len(text)
	known [4]uint64
	ends  [256]uint32
}

func newSpan(text []byte) *span {
	s := &span{text: text, power: 1}
	for range text {
		s.power *= fnvPrime
	}
	return s
}

// extend returns the hash after the span's text.
func (s *span) extend(hash uint32) uint32 {
	low := hash & 0xff
	word, bit := low/64, uint64(1)<<(low%64)
	if s.known[word]&bit == 0 {
		s.ends[low] = fnv1a(low, s.text)
		s.known[word] |= bit
	}
	return s.ends[low] + (hash-low)*s.power
}
