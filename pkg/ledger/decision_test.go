package ledger

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/nri-memory-manager/nri-memory-manager/pkg/memorymanager"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/memoryqos"
	"github.com/nri-memory-manager/nri-memory-manager/pkg/pods"
)

// The log's text form is for people, its JSON form has every byte.
func TestADecisionInTheLog(t *testing.T) {
	low, high := uint64(1<<30), uint64(2040107008)
	d := Decision{Request: pods.Estimate{Request: 1 << 30, Error: 192 << 20, Source: memoryqos.SourceOOMScore},
		Values: memoryqos.Values{Low: &low, High: &high}, PendingResize: memorymanager.Request{{Type: memorymanager.Memory, Bytes: 3 << 29}}}
	for name, test := range map[string]struct {
		formatter logrus.Formatter
		want      []string
	}{
		"text": {&logrus.TextFormatter{}, []string{"memoryHigh=1.9Gi ", "memoryLow=1Gi ", "memoryRequest=1Gi ", "requestError=192Mi ", `pendingResize="1.5Gi of memory"`}},
		"JSON": {&logrus.JSONFormatter{}, []string{`"memoryHigh":"2040107008"`, `"memoryLow":"1073741824"`, `"memoryRequest":1073741824`,
			`"requestError":201326592`, `"pendingResize":{"memory":1610612736}`}},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			log := logrus.New()
			log.Out, log.Formatter = &out, test.formatter
			log.WithFields(d.Fields()).Info("container created")
			for _, want := range test.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("%s is not in %s", want, &out)
				}
			}
		})
	}
}
