package main

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"testing"
)

func TestParsePicture(t *testing.T) {
	for text, want := range map[string]picture{
		"a.png:1280x900":       {"a.png", 1280, 900, false},
		"b/c.png:390x844:dark": {"b/c.png", 390, 844, true},
	} {
		if got, err := parsePicture(text); err != nil || got != want {
			t.Errorf("%s is %+v (%v), want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "a.png", ":1280x900", "a.png:1280", "a.png:1280x", "a.png:x900", "a.png:1280x900:light", "a.png:1280x900x1",
		"a.png:99999999999999999999x900", "a.png:-1280x900", "a.png:1280x5000", "a.png:1280x900:dark:dark"} {
		want := fmt.Sprintf("%q: want FILE:WIDTHxHEIGHT or FILE:WIDTHxHEIGHT:dark, of 300 to 4000 pixels", text)
		if _, err := parsePicture(text); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %s", text, err, want)
		}
	}
}

// TestLabel decodes a labelled picture, which checks each chunk's length and sum.
func TestLabel(t *testing.T) {
	var drawn bytes.Buffer
	if err := png.Encode(&drawn, image.NewGray(image.Rect(0, 0, 3, 2))); err != nil {
		t.Fatal(err)
	}
	labelled := label(drawn.Bytes(), "v1.2.3")
	if picture, err := png.Decode(bytes.NewReader(labelled)); err != nil || picture.Bounds() != image.Rect(0, 0, 3, 2) {
		t.Errorf("the labelled picture cannot be read: %v", err)
	}
	if !bytes.Contains(labelled, []byte("tEXtSoftware\x00nri-memory-manager v1.2.3")) {
		t.Errorf("the label is not in %q", labelled)
	}
}
