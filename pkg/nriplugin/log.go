package nriplugin

import (
	"context"

	"github.com/sirupsen/logrus"
)

// nriLog logs NRI's own messages. NRI's progress is logged at debug level: Plugin logs what an operator needs to know.
type nriLog struct{ to logrus.FieldLogger }

func (l nriLog) Debugf(_ context.Context, format string, args ...any) { l.to.Debugf(format, args...) }
func (l nriLog) Infof(_ context.Context, format string, args ...any)  { l.to.Debugf(format, args...) }
func (l nriLog) Warnf(_ context.Context, format string, args ...any)  { l.to.Warnf(format, args...) }
func (l nriLog) Errorf(_ context.Context, format string, args ...any) { l.to.Errorf(format, args...) }
