//go:build race

package podinfo

const raceEnabled = true
