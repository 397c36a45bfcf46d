//go:build !tls

package main

import (
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func producerTls() []producer.Option { return nil }

func consumerTls() []consumer.Option { return nil }
