package dra

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/claims"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/durable"
)

// specifications are a driver's files in the folder of the runtimes' CDI specifications, one for each claim. They are the record of the
// claims that are prepared.
type specifications struct{ dir, driver string }

func (s specifications) prefix() string { return s.driver + "-" + claims.Class + "_" }

func (s specifications) path(uid string) string {
	return filepath.Join(s.dir, s.prefix()+uid+".json")
}

// write has the runtime know a claim's devices.
func (s specifications) write(claim claims.Claim) error {
	text, err := claims.Specification(claim, s.driver)
	if err != nil {
		return fmt.Errorf("encoding the CDI specification: %w", err)
	}
	if there, err := os.ReadFile(s.path(claim.UID)); err == nil && string(there) == string(text) {
		return nil
	}
	if err := durable.WriteFile(s.path(claim.UID), text, 0o644); err != nil {
		return fmt.Errorf("writing the CDI specification: %w", err)
	}
	return nil
}

// read returns what a claim's specification records. The error is a *fs.PathError if the file cannot be read, and another one if it is damaged.
func (s specifications) read(uid string) (claims.Claim, error) {
	data, err := durable.ReadFile(s.path(uid))
	if err != nil {
		return claims.Claim{}, err
	}
	return claims.ReadSpecification(data, uid)
}

// remove has the runtime forget a claim's devices.
func (s specifications) remove(uid string) error {
	if err := os.Remove(s.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the CDI specification: %w", err)
	}
	return nil
}

// uids are the UIDs of the claims that have a specification.
func (s specifications) uids() (uids []string) {
	entries, _ := os.ReadDir(s.dir) // a folder that is not there yet has none
	for _, entry := range entries {
		name, ours := strings.CutPrefix(entry.Name(), s.prefix())
		if uid, whole := strings.CutSuffix(name, ".json"); ours && whole && claims.ValidUID(uid) {
			uids = append(uids, uid)
		}
	}
	return uids
}

// Prepared are the claims that a driver has prepared, by its specifications in a folder. One that cannot be read is logged.
func Prepared(dir, driver string, log logrus.FieldLogger) (all []claims.Claim) {
	s := specifications{dir, driver}
	for _, uid := range s.uids() {
		claim, err := s.read(uid)
		if err == nil {
			all = append(all, claim)
			continue
		}
		log.WithError(err).WithField("file", s.path(uid)).Warn("the CDI specification of a resource claim cannot be read: nothing is allocated for the claim")
	}
	return all
}
