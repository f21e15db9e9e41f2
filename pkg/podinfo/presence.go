package podinfo

import (
	"errors"
	"sync"

	"github.com/sirupsen/logrus"
)

// errOff is in the error of a source that answers that it is turned off.
var errOff = errors.New("turned off")

// presence is whether a source answers. A source that is lost, that does not answer from the start, that is turned off or that
// comes back is logged once, at info level; the attempts to reach it are not.
type presence struct {
	name string // in the log
	hint string // why it may not answer, for the log; may be empty

	mu    sync.Mutex
	known bool  // an attempt has ended
	off   bool  // the source has said that it is turned off, and has not answered since
	err   error // of the last attempt; nil while the source answers
}

// succeeded notes that the source answers, and reports whether it did not before.
func (p *presence) succeeded(log logrus.FieldLogger) bool {
	p.mu.Lock()
	news := !p.known || p.err != nil
	p.known, p.off, p.err = true, false, nil
	p.mu.Unlock()
	if news {
		log.Info(p.name + " answers")
	}
	return news
}

// failed notes that the source does not answer.
func (p *presence) failed(log logrus.FieldLogger, err error) {
	p.mu.Lock()
	first, lost := !p.known, p.known && p.err == nil
	off := errors.Is(err, errOff) && !p.off
	p.known, p.off, p.err = true, p.off || off, err
	p.mu.Unlock()
	switch {
	case off:
		log.WithError(err).Info(p.name + " is turned off" + p.hint)
	case lost:
		log.WithError(err).Info("lost " + p.name)
	case first:
		log.WithError(err).Info(p.name + " does not answer" + p.hint)
	}
}

// problem says why the source does not answer; "" while it does and while that is not known yet.
func (p *presence) problem() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return ""
	}
	return p.err.Error()
}

// up reports whether the source answers.
func (p *presence) up() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known && p.err == nil
}
