package recording

import "testing"

// A segment that somebody has edited, or another version has written, is refused with the place and what would be right.
func TestWhatIsNotRead(t *testing.T) {
	for data, want := range map[string]string{
		`{`:                                 `want JSON: unexpected EOF`,
		`{} {}`:                             `want one JSON value`,
		`[]`:                                `want an object, got []`,
		`{"text": "a"}`:                     `parts has no field "text" here: was it recorded by another version?`,
		`{"z": 1, "b": 2, "Text": "a"}`:     `parts has no field "b" here: was it recorded by another version?`,
		`{"Text": 1}`:                       `Text: want a text, got 1`,
		`{"Bool": "true"}`:                  `Bool: want true or false, got "true"`,
		`{"Small": 128}`:                    `Small: want a whole number of 8 bits, got 128`,
		`{"Small": "1"}`:                    `Small: want a whole number of 8 bits, got "1"`,
		`{"Large": -1}`:                     `Large: want a whole number from 0 of 64 bits, got -1`,
		`{"Large": 1e3}`:                    `Large: want a whole number from 0 of 64 bits, got 1e3`,
		`{"Floats": [0.5, "half"]}`:         `Floats: [1]: want a number, got "half"`,
		`{"Floats": {}}`:                    `Floats: want a list, got {}`,
		`{"Array": [1, 2, 3, 4, 5]}`:        `Array: want a list of at most 4, got 5`,
		`{"Map": []}`:                       `Map: want an object, got []`,
		`{"Map": {"a": "b"}}`:               `Map: a: want a whole number from 0 of 64 bits, got "b"`,
		`{"Numbers": {}}`:                   `Numbers: want a list of pairs, got {}`,
		`{"Numbers": [[1, "a"], [2]]}`:      `Numbers: [1]: want a pair, got [2]`,
		`{"Numbers": [["1", "a"]]}`:         `Numbers: [0]: want a whole number of 64 bits, got "1"`,
		`{"At": 12}`:                        `At: want a time, got 12`,
		`{"At": "yesterday"}`:               `At: want a time such as 2026-01-02T15:04:05.123Z, got "yesterday"`,
		`{"Err": {}}`:                       `Err: want the text of an error, got {}`,
		`{"self": {"` + keyAgain + `": 9}}`: `self: want the number of an earlier parts, got 9`,
		`{"Text": ["` + longText + `"]}`:    `Text: want a text, got "[\"` + longText[:58] + `"…`,
	} {
		var into parts
		if err := decode([]byte(data), &into); err == nil || err.Error() != want {
			t.Errorf("%s:\ngot  %v\nwant %s", data, err, want)
		}
	}
}

const longText = "a text of more bytes than a message has room for, whoever may have written it"
