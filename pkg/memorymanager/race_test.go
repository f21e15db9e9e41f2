//go:build race

package memorymanager_test

// The race detector makes these tests ten times slower, and has little to find in them.
func init() { *cases /= 10 }
