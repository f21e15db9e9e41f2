// Package quantity reads Kubernetes quantities as whole bytes and refuses what is not: negative, fractional or too large
// numbers.
package quantity

// Bytes is a number of bytes with the text form of a Kubernetes quantity ("64Mi").
type Bytes uint64
