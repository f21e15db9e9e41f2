package cases

import "testing"

func TestSmoke(t *testing.T) {}
