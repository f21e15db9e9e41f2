//go:build !race

package cover

// machines is how many random machines a property is tried on.
const machines = 100_000
