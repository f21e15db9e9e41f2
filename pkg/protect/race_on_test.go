//go:build race

package protect

const raceEnabled = true
