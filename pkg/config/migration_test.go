package config

import "testing"

func TestMigration(t *testing.T) {
	for text, want := range map[string]string{
		"{}": "UpTo 4Gi", "migration: Always": "Always", "migration: Never": "Never", "migration: {upTo: 64Mi}": "UpTo 64Mi", "migration: {upTo: 0}": "Never",
	} {
		c, err := Files(nil).Parse("c.yaml", []byte(text))
		if err != nil || c.Migration.String() != want {
			t.Errorf("%s is %s, %v, want %s", text, c.Migration, err, want)
		}
		written, err := c.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Files(nil).Parse("c.yaml", written); err != nil || again.Migration != c.Migration {
			t.Errorf("%s is written and read back as %s, %v", text, again.Migration, err)
		}
	}
	if most := (Migration{Always: true}).Most(); most+1 != 0 {
		t.Errorf("Always moves up to %d bytes", most)
	}
}
