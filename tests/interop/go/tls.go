//go:build tls

package main

import (
	"os"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// Options that are newer than the last release: built with tls.mod instead of go.mod.

var isEncrypted = os.Getenv("ROCKETMQ_TLS") == "true"

func producerTls() []producer.Option { return []producer.Option{producer.WithTls(isEncrypted)} }

func consumerTls() []consumer.Option { return []consumer.Option{consumer.WithTls(isEncrypted)} }
