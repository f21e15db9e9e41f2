//go:build !race

package podinfo

const raceEnabled = false
