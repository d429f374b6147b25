from common import until

until("go")
