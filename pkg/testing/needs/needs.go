// Package needs says what a test needs of the machine that it runs on.
package needs

import (
	"os"
	"os/exec"
	"testing"
)

// Program returns the path of a program, which a Debian package of another name may have.
func Program(t testing.TB, name, debianPackage string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		Missing(t, name+" is not installed: apt-get install "+debianPackage)
	}
	return path
}

// Missing skips a test and says what is missing. With MISSING=fail, which CI sets, the test fails: CI has installed everything.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("MISSING") == "fail" {
		t.Fatal(what)
	}
	t.Skip(what)
}
